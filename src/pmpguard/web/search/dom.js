// Elements are made of text and known attributes alone: nothing from the index is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with properties (class, dataset, on* handlers, any property) and children, text or elements. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("aria-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

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

/** A probability in two digits that never claim certainty. */
export function probabilityText(value) {
  if (value < 0.01) return "<1 %";
  return value > 0.99 ? ">99 %" : `${Math.round(100 * value)} %`;
}
