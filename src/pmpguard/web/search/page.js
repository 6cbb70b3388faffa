// The page: what was asked stands in the address; the results, the map and the viewer follow from it.

import { byId, download, several } from "../shared/dom.js";
import { followWords } from "../shared/words.js";
import { addressOf, emptyQuery, filterCount, isEmpty, parametersOf, readAddress } from "./address.js";
import { ServerError, searchFile, showImage, takeTokenFromAddress } from "./api.js";
import { Column } from "./column.js";
import { showFilters } from "./filters.js";
import { followKeys } from "./keys.js";
import { showMap } from "./map.js";
import { placeOf, showWords } from "./query_words.js";
import { prepareSaved } from "./saved.js";
import { showViewer } from "./viewer.js";

const FILES = { geojson: ["hits.geojson", "application/geo+json"], csv: ["hits.csv", "text/csv"], geoparquet: ["hits.parquet", "application/vnd.apache.parquet"] };
const images = new Map(); // uploads of this tab by the number their history entry carries
let nextImage = 1;
let query = emptyQuery();
let map = null;
let running = new AbortController();
const handlers = { onOpen: open, onMark: mark };
const first = new Column(byId("first"), "", handlers);
const beside = new Column(byId("beside"), "/beside", handlers);

const isCompared = () => query.compare !== "" && typeof first.about?.beside === "string";
const shownColumns = () => (isCompared() ? [first, beside] : [first]);
const hasResults = () => shownColumns().some((column) => column.hits.length > 0);

// ---------------------------------------------------------------------------------------------- asking

/** Change the query, write it into the address and search. */
function ask(changes) {
  query = { ...query, hit: "", from: "", ...changes };
  let number = null;
  if (query.image !== null) {
    number = nextImage++;
    images.set(number, query.image);
  }
  history.pushState({ image: number }, "", addressOf(query));
  return find();
}

function restore() {
  const before = [parametersOf(query).toString(), query.compare].join();
  const image = images.get(history.state?.image) ?? null;
  const same = image === query.image && hasResults();
  query = { ...readAddress(), image };
  if (same && [parametersOf(query).toString(), query.compare].join() === before) openFromAddress();
  else find();
}

async function find() {
  running.abort();
  running = new AbortController();
  showQuery();
  closeViewer();
  for (const column of [first, beside]) if (isEmpty(query) || !shownColumns().includes(column)) column.clear();
  if (isEmpty(query)) {
    notice(null);
    showResults();
    return;
  }
  document.body.classList.add("busy");
  const { signal } = running;
  try {
    await Promise.all(shownColumns().map((column) => column.ask(parametersOf(query), query.image, signal)));
  } catch (error) {
    if (error.name === "AbortError") return;
    throw error;
  }
  if (signal.aborted) return;
  notice(isCompared() ? null : first.error);
  document.body.classList.remove("busy");
  showResults();
  openFromAddress();
  const { version, fingerprint } = first.answer;
  if (first.about !== null && version !== "" && fingerprint !== first.about.fingerprint) loadInfo();
}

async function loadInfo() {
  try {
    await first.loadInfo();
    if (first.about.beside !== null) await beside.loadInfo();
  } catch (error) {
    notice(error);
    return;
  }
  const { about } = first;
  const others = about.beside === null ? "" : ` Beside it: ${beside.about.name}, ${beside.about.count.toLocaleString()} images, model ${beside.about.model}.`;
  const captions = about.captions === 0 ? "" : ` and ${several(about.captions, "caption")}`;
  const larger = about.model.startsWith("default: ") ? "A larger model, such as a CLIP tuned on remote sensing (RemoteCLIP, GeoRSCLIP), may search better and needs no training: pmpguard up FOLDER --model FOLDER-OF-A-CLIP --index ANOTHER, or --model hub:ORG/NAME." : "";
  byId("help-index").textContent = `${several(about.count, "image")}${captions}, index version ${about.version}, model ${about.model}.${others} ${larger}`;
  byId("welcome-model").textContent = larger;
  byId("text").disabled = !about.reads_texts;
  if (!about.reads_texts) byId("text").placeholder = "Drop, paste or choose an image: this model reads no texts";
  byId("welcome-title").textContent = `Search ${several(about.count, "image")}`;
  byId("text").maxLength = about.limits.text_characters;
  byId("compare-toggle").hidden = about.beside === null;
  showFilters(about, query, ask);
}

// --------------------------------------------------------------------------------------------- showing

function showQuery() {
  byId("text").value = query.text;
  byId("text-weight").value = query.text_weight || "0.5";
  const given = byId("given");
  const image = byId("given-image");
  given.hidden = query.image === null && query.like === "";
  if (image.src.startsWith("blob:") && image.dataset.own) URL.revokeObjectURL(image.src);
  delete image.dataset.own;
  image.classList.remove("missing");
  if (query.image !== null) {
    image.onerror = () => image.classList.add("missing"); // a TIFF: the server reads it, the browser does not
    image.src = URL.createObjectURL(query.image);
    image.dataset.own = "true";
  } else if (query.like !== "") showImage(image, "", query.like, 96);
  byId("weight").hidden = given.hidden || query.text === "";
  byId("text").placeholder = given.hidden ? "Describe what to look for, or drop an image" : "Add words to steer the search";
  const filters = filterCount(query);
  byId("filters-count").textContent = String(filters);
  byId("filters-count").hidden = filters === 0;
  byId("compare-toggle").setAttribute("aria-pressed", String(query.compare !== ""));
  if (first.about !== null) showFilters(first.about, query, ask);
  document.title = query.text === "" ? "pmpguard search" : `${query.text} – pmpguard search`;
}

function showResults() {
  const { hits, answer } = first;
  const compared = isCompared();
  byId("welcome").hidden = !isEmpty(query);
  byId("overview").hidden = isEmpty(query) || !byId("notice").hidden;
  byId("status").textContent = compared
    ? `${hits.filter((hit) => beside.placeOf(hit.id) >= 0).length} of ${Math.max(hits.length, beside.hits.length)} results in both; ⇄ place in the other`
    : hits.length === 0
      ? "Nothing found. Try other words or fewer filters."
      : `${hits.length.toLocaleString()} of ${answer.count.toLocaleString()} in ${Math.round(answer.milliseconds)} ms`;
  first.show(query.kind, compared ? beside : null);
  beside.show(query.kind, compared ? first : null);
  byId("beside").hidden = !compared;
  document.body.classList.toggle("compared", compared);
  const located = !compared && hits.some((hit) => hit.bounds !== null);
  byId("files").hidden = hits.length === 0;
  byId("map-toggle").hidden = !located;
  const shown = located && byId("map-toggle").getAttribute("aria-pressed") === "true";
  byId("map").hidden = !shown;
  document.body.classList.toggle("with-map", shown);
  map = shown
    ? showMap(byId("map"), hits, query.box === "" ? null : query.box.split(",").map(Number), {
        onHover: (place) => mark(first, place),
        onChoose: (place) => open(first, place),
        onBox: (box) => ask({ box: box.map((side) => side.toFixed(5)).join(",") }),
      })
    : null;
  const explainable = query.text !== "" && query.kind !== "caption" && hasResults();
  byId("words").hidden = !explainable;
  if (explainable) showWords(byId("words"), query.text);
}

/** Mark a card, the same image in the other column, and its footprint. */
function mark(column, place) {
  for (const one of shownColumns()) one.mark(one === column || place === null ? place : one.placeOf(column.hits[place].id));
  map?.mark(place);
}

function notice(error) {
  byId("notice").hidden = error === null;
  byId("notice-error").textContent = error === null ? "" : error.message;
  byId("notice-fix").textContent = error?.fix ?? "";
}

// ---------------------------------------------------------------------------------------------- viewer

/** The column and the place of what is open. */
function opened() {
  const column = query.from === "beside" && isCompared() ? beside : first;
  return [column, column.placeOf(query.hit)];
}

function open(column, place) {
  query.hit = column.hits[place].id;
  query.from = column === beside ? "beside" : "";
  history.pushState(history.state, "", addressOf(query));
  openFromAddress();
}

function openFromAddress() {
  const [column, place] = opened();
  if (place < 0) {
    closeViewer();
    return;
  }
  const hit = column.hits[place];
  const isQuery = query.text !== "" && query.kind !== "caption";
  const text = (isQuery ? query.text : (hit.caption ?? "")).replace(/\s+/g, " ").trim().slice(0, first.about?.limits.text_characters ?? 1000);
  const { base, hits, answer } = column;
  const name = isCompared() ? column.about.name : "";
  showViewer(hit, { base, name, version: answer.fingerprint, text, isQuery, position: place, total: hits.length }, {
    onClose: () => leave(column, place),
    onMove: move,
    onSimilar: similar,
  });
}

function move(step) {
  const [column, place] = opened();
  if (place + step < 0 || place + step >= column.hits.length) return;
  query.hit = column.hits[place + step].id;
  history.replaceState(history.state, "", addressOf(query));
  openFromAddress();
}

function leave(column, place) {
  const [, last] = opened();
  query.hit = query.from = "";
  history.pushState(history.state, "", addressOf(query));
  closeViewer();
  column.grid.children[last < 0 ? place : last]?.querySelector("button").focus();
}

const closeViewer = () => byId("viewer").close();

/** More like a hit: by its image alone, or steered by words. */
function similar(hit, words = "") {
  if (hit.image_id !== null) ask({ text: words, text_weight: "", like: hit.image_id, image: null, kind: "" });
}

// --------------------------------------------------------------------------------------------- acting

function takeImage(files) {
  const image = [...(files ?? [])].find((file) => file.type.startsWith("image/") || /\.tiff?$/i.test(file.name));
  if (image === undefined) return;
  const most = first.about?.limits.body_bytes;
  if (most !== undefined && image.size > most - 10_000) {
    notice(new ServerError(413, "This image is too large", `Send at most ${Math.floor(most / 2 ** 20)} MB.`));
    return;
  }
  ask({ image, like: "", text: byId("text").value.replace(/\s+/g, " ").trim() });
}

async function keepFile(format) {
  const [name, type] = FILES[format];
  byId("files").open = false;
  try {
    download(name, await searchFile("", parametersOf(query), query.image, format), type);
  } catch (error) {
    notice(error);
  }
}

function toggleFilters(wanted = byId("filters").hidden) {
  byId("filters").hidden = !wanted;
  byId("filters-toggle").setAttribute("aria-expanded", String(wanted));
}

followKeys({
  move,
  similar: () => {
    const card = document.activeElement.closest?.(".card");
    if (byId("viewer").open) {
      const [column, place] = opened();
      similar(column.hits[place]);
    } else if (card) similar((card.closest("#beside") ? beside : first).hits[Number(card.closest("li").dataset.place)]);
  },
  filters: toggleFilters,
});

byId("search").onsubmit = (event) => {
  event.preventDefault();
  const text = byId("text").value.replace(/\s+/g, " ").trim();
  ask({ text });
  if (text !== "") byId("text").blur();
};
byId("choose").onclick = () => byId("file").click();
byId("file").onchange = (event) => {
  takeImage(event.target.files);
  event.target.value = "";
};
byId("given-remove").onclick = () => ask({ image: null, like: "", text_weight: "" });
byId("text-weight").onchange = (event) => ask({ text_weight: event.target.value });
byId("filters-toggle").onclick = () => toggleFilters();
byId("compare-toggle").onclick = () => ask({ compare: query.compare === "" ? "1" : "" });
followWords(byId("words"), (word) => {
  for (const column of shownColumns()) column.light(word === null ? null : placeOf(word), query.text);
});
byId("help-open").onclick = () => byId("help").showModal();
for (const button of byId("files").querySelectorAll("button")) button.onclick = () => keepFile(button.dataset.format);
prepareSaved(() => query, (saved) => ask(saved));
byId("map-toggle").onclick = () => {
  const toggle = byId("map-toggle");
  toggle.setAttribute("aria-pressed", String(toggle.getAttribute("aria-pressed") !== "true"));
  showResults();
};
document.querySelector(".brand").onclick = (event) => {
  event.preventDefault();
  query = emptyQuery();
  ask({});
  byId("text").focus();
};
document.addEventListener("click", (event) => {
  if (!byId("files").contains(event.target)) byId("files").open = false;
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length > 0) takeImage(event.clipboardData.files);
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  if (event.dataTransfer.types.includes("Files")) byId("drop").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) byId("drop").hidden = true;
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").hidden = true;
  takeImage(event.dataTransfer.files);
});
window.addEventListener("popstate", restore);

if (matchMedia("(max-width: 44rem)").matches) byId("map-toggle").setAttribute("aria-pressed", "false");
takeTokenFromAddress();
query = readAddress();
if (isEmpty(query)) byId("text").focus(); // else the keys are for the results
const known = loadInfo();
if (query.compare !== "") await known; // whether there is anything to compare with
find();
