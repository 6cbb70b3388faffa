// One result, large: the image, where each word is found in it, and what is known about it.

import { byId, make, percent } from "../shared/dom.js";
import { followWords } from "../shared/words.js";
import { explain, showImage } from "./api.js";
import { placeOf, showEvidence, showWords } from "./query_words.js";
import { light, regionsAt, scaleOf, unlight } from "./regions.js";
import { bar } from "./svg.js";

const HINT = "Point at a word, or tap it, to see where it is.";
const RELATIVE = "Bars and light are relative: longest and brightest is what is strongest in this image.";

/**
 * Show a hit of the index asked below `base`. `text` is what to explain, which is not the query when that was an
 * image; handlers: `onClose`, `onMove(step)`, `onSimilar(hit, words)`.
 */
export function showViewer(hit, { base, name, version, text, isQuery, position, total }, handlers) {
  const dialog = byId("viewer");
  const image = make("img", { alt: hit.caption ?? hit.id });
  const canvas = make("canvas", { class: "heat", hidden: true });
  const words = make("div", { class: "words" });
  const hint = make("p", { class: "quiet hint" });
  const button = (text, label, onclick, kind = "") => make("button", { type: "button", class: kind, "aria-label": label, title: label, onclick }, text);
  dialog.replaceChildren(
    make("figure", {}, make("div", { class: "frame" }, image, canvas)),
    make(
      "div",
      { class: "about" },
      make(
        "nav",
        {},
        button("‹", "Previous result", () => handlers.onMove(-1), "round"),
        make("span", { class: "quiet" }, [`${position + 1} of ${total}`, name].filter(Boolean).join(", ")),
        button("›", "Next result", () => handlers.onMove(1), "round"),
        button("×", "Close", handlers.onClose, "round close"),
      ),
      text === "" ? null : make("section", {}, make("h3", {}, isQuery ? "Your words in this image" : "Its caption in this image"), words, hint, make("p", { class: "quiet relative" }, RELATIVE)),
      make("div", { class: "figures" }, probability(hit), figure("score", hit.score === null ? "–" : hit.score.toFixed(3))),
      hit.caption && isQuery ? make("section", {}, make("h3", {}, "Caption"), make("p", { class: "caption", dir: "auto" }, hit.caption)) : null,
      more(),
      facts(hit),
    ),
  );
  if (hit.image_id !== null) showImage(image, base, hit.image_id, 1600);
  if (text !== "" && hit.image_id !== null) explainHere();
  if (!dialog.open) dialog.showModal();
  dialog.oncancel = (event) => {
    event.preventDefault();
    handlers.onClose();
  };
  dialog.onclick = (event) => {
    if (event.target === dialog) handlers.onClose();
  };

  /** More like this image, as it is or steered by words. */
  function more() {
    const wish = make("input", { type: "text", maxLength: 1000, placeholder: "but with …", autocomplete: "off", "aria-label": "More like this, but with" });
    const form = make("form", { class: "more" }, wish, make("button", { type: "submit", class: "primary similar" }, "Find similar"));
    form.onsubmit = (event) => {
      event.preventDefault();
      handlers.onSimilar(hit, wish.value.replace(/\s+/g, " ").trim());
    };
    return make("section", { class: "like" }, make("h3", {}, "More like this"), form);
  }

  async function explainHere() {
    hint.textContent = HINT;
    let wanted = null;
    let explanation = null;
    const show = () => {
      const regions = wanted && explanation && image.naturalWidth ? regionsAt(explanation, wanted.start, wanted.stop) : null;
      if (regions === null) unlight(canvas);
      else light(canvas, image, regions, scaleOf(explanation));
      if (explanation) hint.textContent = regions === null ? HINT : canvas.dataset.lit === "true" ? `Lit: where “${wanted.text}” is found.` : `“${wanted.text}” is not found in this image.`;
    };
    showWords(words, text);
    followWords(words, (word) => {
      wanted = word === null ? null : placeOf(word);
      show();
    });
    image.onload = show;
    try {
      explanation = await explain(base, version, hit.image_id, text);
      showEvidence(words, explanation);
      show();
    } catch (error) {
      hint.textContent = `Cannot be explained: ${error.message}`;
    }
  }
}

function probability(hit) {
  if (hit.probability === null) return null;
  const shown = figure("probability", percent(hit.probability));
  shown.append(bar(hit.probability));
  return shown;
}

function figure(name, value) {
  return make("div", { class: "figure" }, make("span", { class: "quiet" }, name), make("b", {}, value));
}

/** Everything known about the hit, as text. */
function facts(hit) {
  const hidden = hit.bounds === null ? [] : ["west", "south", "east", "north", "lon", "lat"];
  const rows = Object.entries(hit.metadata).filter(([name, value]) => !hidden.includes(name) && value !== null && value !== "");
  const place = hit.bounds === null ? [] : [["place", placeText(hit.bounds)]];
  const list = [["id", hit.id], ...place, ...rows].map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, typeof value === "object" ? JSON.stringify(value) : timeText(String(value)))),
  );
  return make("dl", { class: "facts" }, ...list);
}

/** A time of UTC as people write it, a midnight as the day that it nearly always stands for; other text stays. */
function timeText(value) {
  const [, day, clock] = value.match(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)$/) ?? [];
  return day === undefined ? value : clock === "00:00:00" ? day : `${day} ${clock} UTC`;
}

function placeText([west, south, east, north]) {
  const middle = (south + north) / 2;
  const along = (west + (west > east ? east + 360 : east)) / 2;
  const longitude = ((along + 540) % 360) - 180;
  const part = (degrees, above, below) => `${Math.abs(degrees).toFixed(4)}° ${degrees < 0 ? below : above}`;
  return `${part(middle, "N", "S")}, ${part(longitude, "E", "W")}`;
}
