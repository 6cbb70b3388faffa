// The keys of the page.

import { byId } from "../shared/dom.js";

/** Follow keys from now on; `acts`: `move(step)` in the viewer, `similar()`, `filters(wanted)`. */
export function followKeys(acts) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const viewer = byId("viewer").open;
    const writing = event.target.matches("input:not([type=range]):not([type=checkbox]), select, textarea");
    if (event.key === "Escape") {
      if (byId("files").open) {
        byId("files").open = false;
        byId("files").querySelector("summary").focus();
      } else if (!viewer && !byId("filters").hidden) acts.filters(false);
      else if (writing && !viewer) event.target.blur();
      return;
    }
    const arrows = event.key.startsWith("Arrow");
    if (writing && !(event.target === byId("text") && event.key === "ArrowDown")) return;
    let done = true;
    if (viewer && (event.key === "ArrowLeft" || event.key === "ArrowRight")) acts.move(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === "s" && (viewer || document.activeElement.matches(".card"))) acts.similar();
    else if (viewer || document.querySelector("dialog[open]")) done = false;
    else if (arrows && (event.target === byId("text") || !event.target.matches("input"))) done = moveInGrid(event.key);
    else if (event.key === "/") byId("text").select();
    else if (event.key === "?") byId("help").showModal();
    else if (event.key === "f") acts.filters();
    else if (event.key === "v") byId("saved-open").click();
    else if (event.key === "c" && !byId("compare-toggle").hidden) byId("compare-toggle").click();
    else done = false;
    if (done) event.preventDefault();
  });
}

/** The card in the next row or column; cards of a row share their upper edge. */
function moveInGrid(key) {
  const focused = document.activeElement.closest(".card");
  const grid = focused?.closest(".grid") ?? [...document.querySelectorAll(".grid")].find((one) => one.children.length > 0);
  const cards = [...(grid?.querySelectorAll(".card") ?? [])];
  if (cards.length === 0) return false;
  const here = cards.indexOf(focused);
  const columns = cards.findIndex((one) => one.offsetTop > cards[0].offsetTop);
  const row = columns < 0 ? cards.length : columns;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[key];
  const next = here < 0 ? 0 : here + step;
  if (next < 0 && key === "ArrowUp") byId("text").focus();
  else cards[Math.min(next, cards.length - 1)]?.focus();
  return true;
}
