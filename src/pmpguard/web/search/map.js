// Footprints of the hits on a graticule with the Earth's coasts: no tiles, nothing fetched.

import { make } from "../shared/dom.js";
import { land } from "./coast.js";
import { draw } from "./svg.js";

const STEPS = [60, 30, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001];

/**
 * Draw the hits that have bounds. `box` is the filter's area, or null. Handlers: `onHover(place|null)`,
 * `onChoose(place)`, `onBox([west, south, east, north])` for an area drawn with the pointer.
 */
export function showMap(aside, hits, box, handlers) {
  const located = hits.map((hit, place) => ({ place, hit })).filter(({ hit }) => hit.bounds !== null);
  const unwrapped = located.map(({ hit }) => unwrap(hit.bounds));
  const width = Math.max(300, aside.clientWidth || 640);
  const view = viewOf(width, box === null ? unwrapped : [...unwrapped, unwrap(box)]);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${view.height}`, role: "group" });
  svg.append(draw("rect", { class: "sea", width, height: view.height }), land(view), graticule(view));
  if (box !== null) svg.append(rectangle(view, unwrap(box), "area"));
  const shapes = new Map();
  for (const [index, { place, hit }] of [...located.entries()].reverse()) {
    const group = footprint(view, unwrapped[index], place, hit);
    group.addEventListener("pointerenter", () => handlers.onHover(place));
    group.addEventListener("pointerleave", () => handlers.onHover(null));
    group.addEventListener("click", () => handlers.onChoose(place));
    shapes.set(place, group);
    svg.append(group);
  }
  const drawing = make("button", { type: "button", "aria-pressed": "false" }, "Draw an area");
  drawing.onclick = () => drawArea(svg, view, drawing, handlers.onBox);
  const legend = make("p", {}, `${located.length} of ${hits.length} results have a place`);
  aside.replaceChildren(svg, make("div", { class: "map-tools" }, legend, drawing));
  return {
    /** Bring one footprint to the front, or none. */
    mark(place) {
      for (const [other, group] of shapes) group.classList.toggle("marked", other === place);
      const group = shapes.get(place);
      if (group !== undefined && !group.matches(":hover")) svg.append(group); // moved under a pointer, it loses the click
    },
  };
}

/** A box whose east is beyond 180 where it crosses the antimeridian. */
const unwrap = ([west, south, east, north]) => [west, south, west > east ? east + 360 : east, north];

/** The part of the world that holds all boxes with some room around, never flatter or taller than is handy. */
function viewOf(width, boxes) {
  let west = Math.min(...boxes.map((box) => box[0]));
  let south = Math.min(...boxes.map((box) => box[1]));
  let east = Math.max(...boxes.map((box) => box[2]));
  let north = Math.max(...boxes.map((box) => box[3]));
  const room = Math.max(0.12 * Math.max(east - west, north - south), 0.0005);
  [west, south, east, north] = [west - room, south - room, east + room, north + room];
  const narrowing = Math.max(0.15, Math.cos((((south + north) / 2) * Math.PI) / 180));
  let wide = (east - west) * narrowing;
  let tall = north - south;
  if (tall < 0.6 * wide) {
    south -= (0.6 * wide - tall) / 2;
    tall = 0.6 * wide;
  } else if (tall > 1.1 * wide) {
    west -= (tall / 1.1 - wide) / 2 / narrowing;
    wide = tall / 1.1;
  }
  const scale = width / wide;
  const height = Math.round(tall * scale);
  return {
    width,
    height,
    west,
    top: south + tall,
    x: (longitude) => (longitude - west) * narrowing * scale,
    y: (latitude) => (south + tall - latitude) * scale,
    longitude: (x) => west + x / narrowing / scale,
    latitude: (y) => south + tall - y / scale,
  };
}

function graticule(view) {
  const lines = draw("g", { class: "graticule" });
  const east = view.longitude(view.width);
  const south = view.latitude(view.height);
  const step = STEPS.find((size) => (east - view.west) / size >= 3) ?? STEPS.at(-1);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let line = Math.ceil(view.west / step); line * step < east; line += 1) {
    const x = view.x(line * step);
    lines.append(draw("line", { x1: x, x2: x, y1: 0, y2: view.height }));
    if (x < view.width - 30) lines.append(label(x + 5, view.height - 8, ((line * step + 540) % 360) - 180, digits, "E", "W"));
  }
  for (let line = Math.ceil(south / step); line * step < view.top; line += 1) {
    if (Math.abs(line * step) > 90) continue;
    const y = view.y(line * step);
    lines.append(draw("line", { x1: 0, x2: view.width, y1: y, y2: y }));
    if (y > 20 && y < view.height - 30) lines.append(label(5, y - 5, line * step, digits, "N", "S"));
  }
  return lines;
}

function label(x, y, degrees, digits, above, below) {
  const side = Math.abs(degrees) < 1e-9 ? "" : degrees > 0 ? above : below;
  return draw("text", { x, y }, `${Math.abs(degrees).toFixed(digits)}°${side}`);
}

function rectangle(view, [west, south, east, north], kind) {
  const [x, y] = [view.x(west), view.y(north)];
  return draw("rect", { class: kind, x, y, width: view.x(east) - x, height: view.y(south) - y, rx: 2 });
}

/** A rectangle at its true size with a dot that can be seen and hit however small it is. */
function footprint(view, box, place, hit) {
  const group = draw("g", { class: "footprint", "data-place": place });
  const x = view.x((box[0] + box[2]) / 2);
  const y = view.y((box[1] + box[3]) / 2);
  const small = view.x(box[2]) - view.x(box[0]) < 14 || view.y(box[1]) - view.y(box[3]) < 14;
  group.append(draw("title", {}, hit.caption ?? hit.id), rectangle(view, box, "shape"));
  if (small) group.append(draw("circle", { cx: x, cy: y, r: 7 }));
  group.append(draw("text", { x, y: y + 4, class: small ? "rank small" : "rank" }, String(place + 1)));
  return group;
}

/** Let the next drag on the map become an area; Escape or a second press of the button gives up. */
function drawArea(svg, view, button, onBox) {
  const ending = new AbortController();
  const { signal } = ending;
  const stop = () => {
    ending.abort();
    svg.classList.remove("drawing");
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => drawArea(svg, view, button, onBox);
  };
  const at = (event) => {
    const frame = svg.getBoundingClientRect();
    return [
      ((event.clientX - frame.left) / frame.width) * view.width,
      ((event.clientY - frame.top) / frame.height) * view.height,
    ];
  };
  let first = null;
  const shape = draw("rect", { class: "area" });
  svg.classList.add("drawing");
  button.setAttribute("aria-pressed", "true");
  button.onclick = stop;
  svg.addEventListener("pointerdown", (event) => {
    first = at(event);
    svg.setPointerCapture(event.pointerId);
    svg.append(shape);
  }, { signal });
  svg.addEventListener("pointermove", (event) => {
    if (first === null) return;
    const [x, y] = at(event);
    shape.setAttribute("x", Math.min(x, first[0]));
    shape.setAttribute("y", Math.min(y, first[1]));
    shape.setAttribute("width", Math.abs(x - first[0]));
    shape.setAttribute("height", Math.abs(y - first[1]));
  }, { signal });
  svg.addEventListener("pointerup", (event) => {
    const [x, y] = at(event);
    const [left, right] = [Math.min(x, first[0]), Math.max(x, first[0])];
    const [top, bottom] = [Math.min(y, first[1]), Math.max(y, first[1])];
    stop();
    shape.remove();
    if (right - left < 4 || bottom - top < 4) return;
    const turn = (longitude) => ((longitude + 540) % 360) - 180;
    const clamp = (latitude) => Math.min(90, Math.max(-90, latitude));
    onBox([turn(view.longitude(left)), clamp(view.latitude(bottom)), turn(view.longitude(right)), clamp(view.latitude(top))]);
  }, { signal });
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop(), { signal });
}
