// Elements are made of text and known attributes alone: nothing from a dataset is ever read as markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties (class, data, on* handlers, any property) and children, text or elements. */
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

/** Let the browser keep text as a file of this name. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const whole = new Intl.NumberFormat("en");

/** A whole number with commas. */
export const count = (number) => whole.format(number);
export const several = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

/** A share in percent; without digits, nothing that is not certain reads as certain. */
export function percent(share, digits = 0) {
  if (share === null || Number.isNaN(share)) return "–";
  if (digits === 0 && share > 0 && share < 0.005) return "<1 %";
  if (digits === 0 && share < 1 && share >= 0.995) return ">99 %";
  return `${(share * 100).toFixed(digits)} %`;
}
