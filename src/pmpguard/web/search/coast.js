// Land under the map, from a file of our own: coarse, and so left out where the map shows a few kilometres only.

import { COASTLINE } from "../shared/coastline.js";
import { draw } from "./svg.js";

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const LEAST_DEGREES = 3; // of the view; in less, a coast off by ten kilometres would mislead
let rings = null;

/** Land in a view, with what lies beyond 180° east or west drawn where it comes round again. */
export function land(view) {
  const [west, east] = [view.west, view.longitude(view.width)];
  const group = draw("g", { class: "land" });
  if (east - west < LEAST_DEGREES) return group;
  rings ??= COASTLINE.split(" ").map(decoded);
  for (const turn of [-360, 0, 360]) {
    const shown = rings.filter((ring) => ring.east + turn > west && ring.west + turn < east);
    const path = shown.map(({ points }) => `M${points.map(([x, y]) => `${view.x(x + turn).toFixed(1)} ${view.y(y).toFixed(1)}`).join("L")}Z`);
    if (path.length > 0) group.append(draw("path", { d: path.join(""), "fill-rule": "evenodd" }));
  }
  return group;
}

/** A ring from its letters: five bits each, the lowest first, every number a difference from the last one. */
function decoded(letters) {
  const numbers = [];
  let [value, bits] = [0, 0];
  for (const letter of letters) {
    const digit = DIGITS.indexOf(letter);
    value += (digit % 32) * 2 ** bits;
    bits += 5;
    if (digit >= 32) continue;
    numbers.push(value % 2 ? -(value + 1) / 2 : value / 2);
    [value, bits] = [0, 0];
  }
  let [x, y] = [0, 0];
  const points = [];
  for (let place = 0; place < numbers.length; place += 2) {
    [x, y] = [x + numbers[place], y + numbers[place + 1]];
    points.push([x / 100, y / 100]);
  }
  const longitudes = points.map((point) => point[0]);
  return { points, west: Math.min(...longitudes), east: Math.max(...longitudes) };
}
