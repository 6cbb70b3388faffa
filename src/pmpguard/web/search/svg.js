// SVG elements, and the bars made of them.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A thin bar for a share between 0 and 1. */
export function bar(share) {
  const width = Math.max(3, Math.round(100 * share));
  return draw(
    "svg",
    { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "bar-of", "aria-hidden": "true" },
    draw("rect", { class: "track", width: 100, height: 10 }),
    draw("rect", { class: "level", width, height: 10 }),
  );
}
