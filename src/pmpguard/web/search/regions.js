// The regions of an image that a word of an explanation was found in, and light on them.

import { heatMap, layHeat } from "../shared/heat.js";

/** The scale of one explanation: from the model's boundary (or its weakest region) to its strongest region. */
export function scaleOf(explanation) {
  const values = explanation.words.flatMap((word) => word.regions.flat()).filter((value) => value !== null);
  const high = Math.max(...values);
  const low = explanation.boundary !== null && explanation.boundary < high ? explanation.boundary : Math.min(...values);
  return { low, high: Math.max(high, low + 1e-6) };
}

/** The mean of the regions of the words that overlap a place in the text; null when there are none. */
export function regionsAt(explanation, start, stop) {
  const met = explanation.words.filter((word) => word.start < stop && word.stop > start && word.regions.length);
  if (met.length === 0) return null;
  return met[0].regions.map((row, y) =>
    row.map((_, x) => met.reduce((sum, word) => sum + (word.regions[y][x] ?? 0), 0) / met.length),
  );
}

/** Draw regions over the whole of an image; the canvas takes the image's shape, so both are cut alike. */
export function light(canvas, image, regions, scale) {
  const levels = regions.map((row) =>
    row.map((value) => Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low)))),
  );
  const width = image.naturalWidth || 1;
  const height = image.naturalHeight || 1;
  const factor = 256 / Math.max(width, height);
  canvas.width = Math.max(1, Math.round(width * factor));
  canvas.height = Math.max(1, Math.round(height * factor));
  const map = heatMap(levels);
  layHeat(canvas.getContext("2d"), map, [0, 0, map.width, map.height], [0, 0, canvas.width, canvas.height]);
  canvas.dataset.lit = String(levels.flat().some((level) => level > 0));
  canvas.hidden = false;
}

export function unlight(canvas) {
  canvas.hidden = true;
  delete canvas.dataset.lit;
}
