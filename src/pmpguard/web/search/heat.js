// Light on the regions of a image that a word was found in, and shade over the rest.

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

/** Draw regions over the whole of a image; the canvas takes the image's shape, so both are cut alike. */
export function light(canvas, image, regions, scale) {
  const rows = regions.length;
  const columns = regions[0].length;
  const small = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  regions.flat().forEach((value, place) => {
    const share = Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low)));
    const glow = [255, 196, 70];
    const shade = [8, 12, 20];
    for (let channel = 0; channel < 3; channel += 1) {
      pixels.data[4 * place + channel] = shade[channel] + share * (glow[channel] - shade[channel]);
    }
    pixels.data[4 * place + 3] = 255 * (share < 0.5 ? 0.6 * (1 - 1.34 * share) : 0.2 + 0.16 * (share - 0.5));
  });
  small.getContext("2d").putImageData(pixels, 0, 0);
  const width = image.naturalWidth || 1;
  const height = image.naturalHeight || 1;
  const factor = 256 / Math.max(width, height);
  canvas.width = Math.max(1, Math.round(width * factor));
  canvas.height = Math.max(1, Math.round(height * factor));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  canvas.dataset.lit = String(Math.max(...regions.flat()) > scale.low);
  canvas.hidden = false;
}

export function unlight(canvas) {
  canvas.hidden = true;
  delete canvas.dataset.lit;
}
