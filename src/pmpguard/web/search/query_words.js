// The words of a text as buttons, and how much each speaks for an image.

import { make, percent } from "../shared/dom.js";
import { bar } from "./svg.js";

/** The words of a text with their places, blanks and punctuation left between. */
export function wordsOf(text) {
  return [...text.matchAll(/[\p{L}\p{M}\p{N}_'’-]+/gu)].map((match) => {
    const start = [...text.slice(0, match.index)].length; // characters as the server counts them
    return { text: match[0], start, stop: start + [...match[0]].length };
  });
}

/** Fill `place` with the words of `text`. */
export function showWords(place, text) {
  const buttons = wordsOf(text).map(({ text: word, start, stop }) =>
    make("button", { type: "button", class: "word", "aria-pressed": "false", data: { start, stop } }, word),
  );
  place.replaceChildren(...buttons);
}

/** The place in the text of a button that `showWords` has made. */
export const placeOf = (button) => ({
  text: button.textContent,
  start: Number(button.dataset.start),
  stop: Number(button.dataset.stop),
});

/** Under each word, how much it speaks for the image; words that were not found are marked. */
export function showEvidence(place, explanation) {
  const strongest = Math.max(1e-6, ...explanation.words.map((word) => Math.abs(word.positive + word.negative)));
  for (const button of place.querySelectorAll(".word")) {
    const { start, stop } = placeOf(button);
    const met = explanation.words.filter((word) => word.start < stop && word.stop > start);
    if (met.length === 0) continue;
    const total = met.reduce((sum, word) => sum + word.positive + word.negative, 0);
    button.classList.toggle("against", total < 0);
    const share = percent(Math.abs(total) / strongest);
    button.title = `evidence ${total >= 0 ? "+" : "−"}${Math.abs(total).toFixed(3)}, ${share} of the strongest word here`;
    button.querySelector("svg")?.remove();
    button.append(bar(Math.abs(total) / strongest));
  }
}
