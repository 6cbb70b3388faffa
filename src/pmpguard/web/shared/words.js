// Words that say where they are found: pointing at one, or choosing it, lights its regions.

/**
 * Follow the elements of class "word" inside `place`, now and later. `onWord` gets the element to light, or null
 * for none. Pointing at or focusing a word lights it for as long as that lasts; choosing it (click, tap, Enter or
 * the space bar) keeps it lit until it is chosen again.
 */
export function followWords(place, onWord) {
  let chosen = null;
  const wordOf = (target) => target?.closest?.(".word") ?? null;
  const kept = () => (chosen !== null && place.contains(chosen) ? chosen : null);
  const choose = (word) => {
    chosen = kept() === word ? null : word;
    for (const other of place.querySelectorAll(".word")) other.setAttribute("aria-pressed", String(other === chosen));
    onWord(chosen);
  };
  for (const [type, isOn] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
    place.addEventListener(type, (event) => {
      const word = wordOf(event.target);
      if (word === null || event.pointerType === "touch" || wordOf(event.relatedTarget) === word) return;
      onWord(isOn ? word : kept());
    });
  }
  place.addEventListener("click", (event) => {
    const word = wordOf(event.target);
    if (word !== null) choose(word);
  });
  place.addEventListener("keydown", (event) => {
    const word = wordOf(event.target);
    if (word === null || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    choose(word);
  });
}
