// One look of heat maps: shade where a word is not found, warm light where it is, and the image in both.

const HEAT = [[0, 8, 10, 20, 130], [0.5, 120, 95, 45, 50], [1, 255, 205, 80, 120]]; // level, red, green, blue, alpha

/** Red, green, blue and alpha at a level in [0, 1]. */
function heatColour(level) {
  const upper = Math.max(1, HEAT.findIndex(([at]) => at >= level));
  const [[low, ...from], [high, ...to]] = [HEAT[upper - 1], HEAT[upper]];
  return from.map((value, channel) => value + ((level - low) / (high - low)) * (to[channel] - value));
}

/** A small canvas, one pixel for each level in [0, 1]; `levels` are rows from the top. */
export function heatMap(levels) {
  const [rows, columns] = [levels.length, levels[0].length];
  const map = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  levels.flat().forEach((level, place) => pixels.data.set(heatColour(level), 4 * place));
  map.getContext("2d").putImageData(pixels, 0, 0);
  return map;
}

/** Lay the part `from` of a heat map smoothly over the part `box` of a canvas; both are [left, top, width, height]. */
export function layHeat(context, map, from, box) {
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(map, ...from, ...box);
}
