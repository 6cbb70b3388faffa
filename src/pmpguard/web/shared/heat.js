// One look of heat maps: nothing where a word is not found, over violet to bright yellow where it is.

const COLOURS = [[0, 70, 0, 110], [0.3, 150, 20, 110], [0.6, 240, 90, 40], [1, 255, 240, 120]]; // level, red, green, blue
const OPACITY = [[0, 0], [0.15, 90], [1, 215]]; // level, alpha
const SHADE = "rgb(8 10 20 / 0.42)"; // over the image, so that the heat stands out on bright ones

/** The values at a level between stops. */
function between(stops, level) {
  const upper = Math.max(1, stops.findIndex(([at]) => at >= level));
  const [[low, ...from], [high, ...to]] = [stops[upper - 1], stops[upper]];
  const share = (level - low) / (high - low);
  return from.map((value, channel) => value + share * (to[channel] - value));
}

/** A small canvas, one pixel for each level in [0, 1]; `levels` are rows from the top. */
export function heatMap(levels) {
  const [rows, columns] = [levels.length, levels[0].length];
  const map = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  levels.flat().forEach((level, place) => {
    pixels.data.set([...between(COLOURS, level), ...between(OPACITY, level)], 4 * place);
  });
  map.getContext("2d").putImageData(pixels, 0, 0);
  return map;
}

/** Lay the part `from` of a heat map smoothly over the part `box` of a canvas; both are [left, top, width, height]. */
export function layHeat(context, map, from, box) {
  context.fillStyle = SHADE;
  context.fillRect(...box);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(map, ...from, ...box);
}
