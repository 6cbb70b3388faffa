// The page: what was asked stands in the address; the results, the map and the viewer follow from it.

import { byId, download, make, percent, several } from "../shared/dom.js";
import { followWords } from "../shared/words.js";
import { addressOf, emptyQuery, filterCount, isEmpty, parametersOf, readAddress } from "./address.js";
import { ServerError, explain, info, search, showImage, takeTokenFromAddress } from "./api.js";
import { showFilters } from "./filters.js";
import { showMap } from "./map.js";
import { placeOf, showWords } from "./query_words.js";
import { light, regionsAt, scaleOf, unlight } from "./regions.js";
import { bar } from "./svg.js";
import { showViewer } from "./viewer.js";

const images = new Map(); // uploads of this tab by the number their history entry carries
let nextImage = 1;
let query = emptyQuery();
let about = null; // what /info says
let answer = { version: "", count: 0, hits: [] };
let map = null;
let running = new AbortController();
let lighting = 0; // which wish to light a word is the latest

// ---------------------------------------------------------------------------------------------- asking

/** Change the query, write it into the address and search. */
function ask(changes) {
  query = { ...query, hit: "", ...changes };
  let number = null;
  if (query.image !== null) {
    number = nextImage++;
    images.set(number, query.image);
  }
  history.pushState({ image: number }, "", addressOf(query));
  return find();
}

function restore() {
  const before = parametersOf(query).toString();
  const image = images.get(history.state?.image) ?? null;
  const same = image === query.image && answer.hits.length > 0;
  query = { ...readAddress(), image };
  if (same && parametersOf(query).toString() === before) openFromAddress();
  else find();
}

async function find() {
  running.abort();
  running = new AbortController();
  showQuery();
  closeViewer();
  if (isEmpty(query)) {
    answer = { version: "", count: 0, hits: [] };
    showResults();
    return;
  }
  document.body.classList.add("busy");
  const { signal } = running;
  try {
    answer = await search(parametersOf(query), query.image, signal);
    notice(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    answer = { version: "", count: 0, hits: [] };
    notice(error instanceof ServerError ? error : new ServerError(0, String(error), ""));
  }
  document.body.classList.remove("busy");
  showResults();
  openFromAddress();
  if (about !== null && answer.version !== "" && answer.fingerprint !== about.fingerprint) loadInfo();
}

async function loadInfo() {
  try {
    about = await info();
  } catch (error) {
    notice(error);
    return;
  }
  byId("help-index").textContent = `${about.count.toLocaleString()} images and ${about.captions.toLocaleString()} captions, index version ${about.version}, model ${about.model}.`;
  byId("welcome-title").textContent = `Search ${several(about.count, "image")}`;
  byId("text").maxLength = about.limits.text_characters;
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
  } else if (query.like !== "") showImage(image, query.like, 96);
  byId("weight").hidden = given.hidden || query.text === "";
  byId("text").placeholder = given.hidden ? "Describe what to look for, or drop an image" : "Add words to steer the search";
  const filters = filterCount(query);
  byId("filters-count").textContent = String(filters);
  byId("filters-count").hidden = filters === 0;
  if (about !== null) showFilters(about, query, ask);
  document.title = query.text === "" ? "pmpguard search" : `${query.text} – pmpguard search`;
}

function showResults() {
  const { hits } = answer;
  byId("welcome").hidden = !isEmpty(query);
  byId("overview").hidden = isEmpty(query) || !byId("notice").hidden;
  byId("status").textContent = hits.length === 0
    ? "Nothing found. Try other words or fewer filters."
    : `${hits.length.toLocaleString()} of ${answer.count.toLocaleString()} in ${Math.round(answer.milliseconds)} ms`;
  byId("grid").replaceChildren(...hits.map(card));
  byId("grid").className = query.kind === "caption" ? "grid captions" : "grid";
  const located = hits.some((hit) => hit.bounds !== null);
  byId("export").hidden = !located;
  byId("map-toggle").hidden = !located;
  const shown = located && byId("map-toggle").getAttribute("aria-pressed") === "true";
  byId("map").hidden = !shown;
  document.body.classList.toggle("with-map", shown);
  map = shown
    ? showMap(byId("map"), hits, query.box === "" ? null : query.box.split(",").map(Number), {
        onHover: mark,
        onChoose: open,
        onBox: (box) => ask({ box: box.map((side) => side.toFixed(5)).join(",") }),
      })
    : null;
  const explainable = query.text !== "" && query.kind !== "caption" && hits.length > 0;
  byId("words").hidden = !explainable;
  if (explainable) showWords(byId("words"), query.text);
}

function card(hit, place) {
  const image = make("img", { alt: "", loading: "lazy", decoding: "async" });
  if (hit.image_id !== null) showImage(image, hit.image_id, 320);
  const figures = make(
    "span",
    { class: "figures" },
    hit.probability === null ? null : bar(hit.probability),
    make("span", { title: "probability that it matches" }, hit.probability === null ? "" : percent(hit.probability)),
    make("span", { class: "quiet", title: "score" }, hit.score === null ? "" : hit.score.toFixed(2)),
  );
  const button = make(
    "button",
    { type: "button", class: "card", "aria-label": `Result ${place + 1}: ${hit.caption ?? hit.id}` },
    make("span", { class: "frame" }, image, make("canvas", { class: "heat", hidden: true })),
    figures,
    make("span", { class: "caption", dir: "auto" }, hit.caption ?? hit.id),
  );
  button.onclick = () => open(place);
  button.onpointerenter = () => mark(place);
  button.onpointerleave = () => mark(null);
  button.onfocus = () => mark(place);
  return make("li", { data: { place } }, button);
}

function mark(place) {
  for (const item of byId("grid").children) item.classList.toggle("marked", Number(item.dataset.place) === place);
  map?.mark(place);
}

/** Light a word in all results, a few questions at a time, nearest to the top first; null ends it. */
async function lightGrid(word) {
  const wish = ++lighting;
  const cards = [...byId("grid").querySelectorAll(".card")];
  const { fingerprint: version, hits } = answer;
  if (word === null) {
    for (const one of cards) unlight(one.querySelector("canvas"));
    return;
  }
  await new Promise((resolve) => setTimeout(resolve, 90)); // a pointer that passes by asks nothing
  const waiting = hits.map((hit, place) => [hit, cards[place]]).slice(0, 60);
  const work = async () => {
    while (waiting.length > 0 && wish === lighting) {
      const [hit, one] = waiting.shift();
      try {
        const explanation = await explain(version, hit.image_id, query.text);
        const regions = regionsAt(explanation, word.start, word.stop);
        if (wish === lighting && regions !== null) light(one.querySelector("canvas"), one.querySelector("img"), regions, scaleOf(explanation));
      } catch (error) {
        if (wish === lighting && error.status !== 404) return;
      }
    }
  };
  await Promise.all([work(), work(), work()]);
}

function notice(error) {
  byId("notice").hidden = error === null;
  byId("notice-error").textContent = error === null ? "" : error.message;
  byId("notice-fix").textContent = error?.fix ?? "";
}

// ---------------------------------------------------------------------------------------------- viewer

function open(place) {
  query.hit = answer.hits[place].id;
  history.pushState(history.state, "", addressOf(query));
  openFromAddress();
}

function openFromAddress() {
  const place = answer.hits.findIndex((hit) => hit.id === query.hit);
  if (place < 0) {
    closeViewer();
    return;
  }
  const hit = answer.hits[place];
  const isQuery = query.text !== "" && query.kind !== "caption";
  const text = (isQuery ? query.text : (hit.caption ?? "")).replace(/\s+/g, " ").trim().slice(0, about?.limits.text_characters ?? 1000);
  showViewer(hit, { version: answer.fingerprint, text, isQuery, position: place, total: answer.hits.length }, {
    onClose: () => leave(place),
    onMove: move,
    onSimilar: similar,
  });
}

function move(step) {
  const place = answer.hits.findIndex((hit) => hit.id === query.hit) + step;
  if (place < 0 || place >= answer.hits.length) return;
  query.hit = answer.hits[place].id;
  history.replaceState(history.state, "", addressOf(query));
  openFromAddress();
}

function leave(place) {
  const last = answer.hits.findIndex((hit) => hit.id === query.hit);
  query.hit = "";
  history.pushState(history.state, "", addressOf(query));
  closeViewer();
  byId("grid").children[last < 0 ? place : last]?.querySelector("button").focus();
}

const closeViewer = () => byId("viewer").close();
const similar = (hit) => hit.image_id !== null && ask({ text: "", like: hit.image_id, image: null, kind: "" });

// --------------------------------------------------------------------------------------------- acting

function takeImage(files) {
  const image = [...(files ?? [])].find((file) => file.type.startsWith("image/") || /\.tiff?$/i.test(file.name));
  if (image === undefined) return;
  if (about !== null && image.size > about.limits.body_bytes - 10_000) {
    notice(new ServerError(413, "This image is too large", `Send at most ${Math.floor(about.limits.body_bytes / 2 ** 20)} MB.`));
    return;
  }
  ask({ image, like: "", text: byId("text").value.replace(/\s+/g, " ").trim() });
}

function exportHits() {
  const features = answer.hits.filter((hit) => hit.geometry !== null).map((hit) => ({
    type: "Feature",
    id: hit.id,
    bbox: hit.bounds,
    geometry: hit.geometry,
    properties: { id: hit.id, score: hit.score, probability: hit.probability, caption: hit.caption, ...hit.metadata },
  }));
  download("hits.geojson", JSON.stringify({ type: "FeatureCollection", features }, null, 1), "application/geo+json");
}

function toggleFilters(wanted = byId("filters").hidden) {
  byId("filters").hidden = !wanted;
  byId("filters-toggle").setAttribute("aria-expanded", String(wanted));
}

/** The card in the next row or column; cards of a row share their upper edge. */
function moveInGrid(key) {
  const cards = [...byId("grid").querySelectorAll(".card")];
  if (cards.length === 0) return false;
  const here = cards.indexOf(document.activeElement);
  const columns = cards.findIndex((one) => one.offsetTop > cards[0].offsetTop);
  const row = columns < 0 ? cards.length : columns;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[key];
  const next = here < 0 ? 0 : here + step;
  if (next < 0 && key === "ArrowUp") byId("text").focus();
  else cards[Math.min(next, cards.length - 1)]?.focus();
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const viewer = byId("viewer").open;
  const writing = event.target.matches("input:not([type=range]):not([type=checkbox]), select, textarea");
  if (event.key === "Escape") {
    if (!viewer && !byId("filters").hidden) toggleFilters(false);
    else if (writing && !viewer) event.target.blur();
    return;
  }
  const arrows = event.key.startsWith("Arrow");
  if (writing && !(event.target === byId("text") && event.key === "ArrowDown")) return;
  let done = true;
  if (viewer && (event.key === "ArrowLeft" || event.key === "ArrowRight")) move(event.key === "ArrowLeft" ? -1 : 1);
  else if (event.key === "s" && (viewer || document.activeElement.matches(".card"))) {
    const place = viewer ? answer.hits.findIndex((hit) => hit.id === query.hit) : Number(document.activeElement.closest("li").dataset.place);
    similar(answer.hits[place]);
  } else if (viewer || document.querySelector("dialog[open]")) done = false;
  else if (arrows && !event.target.matches("input")) done = moveInGrid(event.key);
  else if (arrows && event.target === byId("text")) done = moveInGrid(event.key);
  else if (event.key === "/") byId("text").select();
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "f") toggleFilters();
  else done = false;
  if (done) event.preventDefault();
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
followWords(byId("words"), (word) => lightGrid(word === null ? null : placeOf(word)));
byId("help-open").onclick = () => byId("help").showModal();
byId("export").onclick = exportHits;
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
loadInfo();
find();
