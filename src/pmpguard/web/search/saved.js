// Searches kept under a name in this browser, and as a file to take elsewhere. A search is its address.

import { byId, download, make } from "../shared/dom.js";
import { addressOf, filterCount, isEmpty, readAddress } from "./address.js";

const KEY = "pmpguard-searches";
const MOST = 200;
const LONGEST = 4000; // characters of an address

/** Set up the dialog; `current()` gives the query on the page, `onChoose(query)` gets the one to go to. */
export function prepareSaved(current, onChoose) {
  const dialog = byId("saved");
  byId("saved-open").onclick = () => {
    show();
    dialog.showModal();
  };
  byId("saved-form").onsubmit = (event) => {
    event.preventDefault();
    const name = byId("saved-name").value.trim();
    if (name !== "") keep([{ name, query: written(current()) }, ...read().filter((one) => one.name !== name)]);
    show();
  };
  byId("saved-export").onclick = () => download("searches.json", `${JSON.stringify(read(), null, 1)}\n`, "application/json");
  byId("saved-import").onclick = () => byId("saved-file").click();
  byId("saved-file").onchange = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    const found = file === undefined ? [] : searchesIn(await file.text());
    const known = new Set(found?.map((one) => one.name));
    if (found !== null) keep([...found, ...read().filter((one) => !known.has(one.name))]);
    show(found === null ? "This file holds no saved searches." : `${found.length} read.`);
  };

  function show(said = "") {
    const query = current();
    const reason = isEmpty(query) && filterCount(query) === 0
      ? "Search first: what is on the page can then be kept."
      : query.image !== null ? "A search by an uploaded image cannot be kept: search by one of the index." : "";
    byId("saved-name").disabled = byId("saved-keep").disabled = reason !== "";
    byId("saved-name").value = reason === "" ? query.text || `like ${query.like}` : "";
    byId("saved-said").textContent = said || reason;
    const searches = read();
    byId("saved-export").disabled = searches.length === 0;
    byId("saved-list").replaceChildren(...searches.map((one) => entry(one, searches)));
  }

  function entry(one, searches) {
    const query = readAddress(one.query);
    const link = make("a", { href: addressOf(query) }, make("b", { dir: "auto" }, one.name), make("span", { class: "quiet", dir: "auto" }, describe(query)));
    link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      dialog.close();
      onChoose(query);
    };
    const forget = make("button", { type: "button", class: "round", "aria-label": `Forget ${one.name}`, title: "Forget" }, "×");
    forget.onclick = () => {
      keep(searches.filter((other) => other !== one));
      show();
      byId("saved-list").querySelector("a, button")?.focus();
    };
    return make("li", {}, link, forget);
  }
}

function describe(query) {
  const parts = [query.text, query.like && `like ${query.like}`, ...query.where, query.box && `in ${query.box}`, query.near && `near ${query.near}${query.radius && ` within ${query.radius} km`}`, (query.start || query.stop) && `${query.start || "…"} to ${query.stop || "…"}`];
  return parts.filter(Boolean).join(" · ");
}

const written = (query) => addressOf({ ...query, hit: "", from: "" }).replace(/^\/\??/, "?");

/** The searches of a file or of this browser, null where there are none in it; names of fields alone are kept. */
function searchesIn(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    return null;
  }
  if (!Array.isArray(found)) return null;
  const sound = found.filter((one) => typeof one?.name === "string" && typeof one.query === "string" && one.query.length <= LONGEST && one.name.trim() !== "");
  if (sound.length === 0 && found.length > 0) return null;
  return sound.slice(0, MOST).map((one) => ({ name: one.name.trim().slice(0, 200), query: written(readAddress(one.query)) }));
}

const read = () => searchesIn(localStorage.getItem(KEY) ?? "[]") ?? [];
const keep = (searches) => localStorage.setItem(KEY, JSON.stringify(searches.slice(0, MOST)));
