// The words of a text as buttons: pointing at one, or choosing it, lights its regions.

import { bar, make } from "./dom.js";

/** The words of a text with their places, blanks and punctuation left between. */
export function wordsOf(text) {
  return [...text.matchAll(/[\p{L}\p{M}\p{N}_'’-]+/gu)].map((match) => {
    const start = [...text.slice(0, match.index)].length; // characters as the server counts them
    return { text: match[0], start, stop: start + [...match[0]].length };
  });
}

/**
 * Fill `place` with the words of `text`. `onWord` gets the word to light, or null for none. Pointing lights a
 * word for as long as it lasts; choosing (click, tap, Enter) keeps it lit until it is chosen again.
 */
export function showWords(place, text, onWord) {
  let kept = null;
  const buttons = wordsOf(text).map((word) => {
    const button = make("button", { type: "button", class: "word", "aria-pressed": "false" }, word.text);
    button.dataset.start = word.start;
    button.dataset.stop = word.stop;
    button.onpointerenter = (event) => {
      if (event.pointerType !== "touch") onWord(word);
    };
    button.onpointerleave = (event) => {
      if (event.pointerType !== "touch") onWord(kept);
    };
    button.onclick = () => {
      kept = kept === word ? null : word;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button && kept !== null));
      onWord(kept);
    };
    return button;
  });
  place.replaceChildren(...buttons);
}

/** Under each word, how much it speaks for the image; words that were not found are marked. */
export function showEvidence(place, explanation) {
  const strongest = Math.max(1e-6, ...explanation.words.map((word) => Math.abs(word.positive + word.negative)));
  for (const button of place.querySelectorAll(".word")) {
    const start = Number(button.dataset.start);
    const stop = Number(button.dataset.stop);
    const met = explanation.words.filter((word) => word.start < stop && word.stop > start);
    if (met.length === 0) continue;
    const total = met.reduce((sum, word) => sum + word.positive + word.negative, 0);
    button.classList.toggle("against", total < 0);
    button.title = `evidence ${total >= 0 ? "+" : "−"}${Math.abs(total).toFixed(3)}`;
    button.querySelector("svg")?.remove();
    button.append(bar(Math.abs(total) / strongest));
  }
}
