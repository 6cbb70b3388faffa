// Thumbnails and heat maps: tiles cut out of sheets, which are loaded when first needed.

const KEPT_SHEETS = 48;
const sheets = new Map(); // name -> image element, the longest unused first
const wanted = new WeakMap(); // canvas -> what it should show, so that a late sheet paints only what is still asked

function sheetSource(name) {
  if (audit.sheets === null) return `sprites/${name}`;
  const kind = name.endsWith(".png") ? "png" : "jpeg";
  return `data:image/${kind};base64,${audit.sheets[name]}`;
}

/** The sheet's image, perhaps still loading. Without `load`, null where it was never asked for. */
function sheetImage(name, load) {
  let image = sheets.get(name);
  if (!image && !load) return null;
  if (!image) {
    image = new Image();
    image.src = sheetSource(name);
    if (sheets.size >= KEPT_SHEETS) sheets.delete(sheets.keys().next().value);
  }
  sheets.delete(name);
  sheets.set(name, image);
  return image;
}

function sheetName(prefix, tile, across, suffix) {
  return `${prefix}${String(Math.floor(tile / (across * across))).padStart(3, "0")}.${suffix}`;
}

function tileCorner(tile, across, width, height) {
  const place = tile % (across * across);
  return [(place % across) * width, Math.floor(place / across) * height];
}

/** Where a row's image lies on the sheets, or null where it has none. */
function thumbnailOf(row) {
  const {across, side, tile, width, height} = audit.thumbnails;
  const image = audit.image[row];
  if (tile[image] < 0 || width[image] === 0) return null;
  const [x, y] = tileCorner(tile[image], across, side, side);
  return {sheet: sheetName("", tile[image], across, "jpg"), x, y, width: width[image], height: height[image]};
}

/** Where a word's heat map lies, or null where the model has no regions. */
function heatOf(row, word) {
  const {across, tileHeight, tileWidth, gridHeight, gridWidth} = audit.heat;
  if (word < 0 || across === 0 || !audit.words.mapped[word]) return null;
  const [x, y] = tileCorner(word, across, tileWidth, tileHeight);
  return {sheet: sheetName("heat-", word, across, "png"), x, y, width: gridWidth[row], height: gridHeight[row]};
}

/** Paint a row's image, with a word's heat map over it if `word` is not -1, once its sheets are there. */
function paint(canvas, row, word = -1, load = true) {
  const want = {row, word};
  wanted.set(canvas, want);
  const image = thumbnailOf(row);
  const heat = heatOf(row, word);
  const sheet = image && sheetImage(image.sheet, load);
  const map = heat && sheetImage(heat.sheet, load);
  const isReady = (tile, loaded) => !tile || loaded?.complete;
  if (isReady(image, sheet) && isReady(heat, map)) {
    drawTiles(canvas, image, sheet, heat, map);
    return;
  }
  if (canvas.dataset.row !== String(row)) clearCanvas(canvas);
  canvas.dataset.row = row;
  if (!load) return;
  const sheetsWanted = [sheet, map].filter(Boolean);
  Promise.all(sheetsWanted.map((wantedSheet) => wantedSheet.decode().catch(() => null))).then(() => {
    if (wanted.get(canvas) === want) drawTiles(canvas, image, sheet, heat, map);
  });
}

function clearCanvas(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  canvas.classList.remove("absent");
}

/** Draw the tile `image` of its sheet `sheet`, and over it the tile `heat` of `map`, where there is one. */
function drawTiles(canvas, image, sheet, heat, map) {
  const context = canvas.getContext("2d");
  clearCanvas(canvas);
  if (!sheet || sheet.naturalWidth === 0) {
    canvas.classList.add("absent"); // unreadable, or the folder beside the page is gone
    return;
  }
  const scale = Math.min(canvas.width / image.width, canvas.height / image.height);
  const width = image.width * scale, height = image.height * scale;
  const box = [(canvas.width - width) / 2, (canvas.height - height) / 2, width, height];
  context.imageSmoothingQuality = "high";
  context.drawImage(sheet, image.x, image.y, image.width, image.height, ...box);
  if (map && map.naturalWidth > 0) {
    layHeat(context, map, [heat.x, heat.y, heat.width, heat.height], box);
  }
}

/** Give the large canvas the shape of its image, sharp on dense screens. */
function shapeCanvas(canvas, row) {
  const image = thumbnailOf(row);
  const side = 336 * Math.min(2, Math.max(1, devicePixelRatio));
  const longest = image ? Math.max(image.width, image.height) : 1;
  const width = Math.round(side * (image ? image.width / longest : 1));
  const height = Math.round(side * (image ? image.height / longest : 1));
  if (canvas.width === width && canvas.height === height) return;
  canvas.width = width;
  canvas.height = height;
}

/** The parts of a caption, text and its judged words marked; `focusable` words can be reached by keyboard. */
function markedCaption(row, focusable) {
  const text = captionOf(row);
  const {first, start, length, support, wrong} = audit.words;
  const parts = [];
  let at = 0;
  for (let word = first[row]; word < first[row + 1]; word++) {
    parts.push(text.slice(at, start[word]));
    at = start[word] + length[word];
    parts.push(wordElement(text.slice(start[word], at), word, support[word] / 255, wrong[word] === 1, focusable));
  }
  parts.push(text.slice(at));
  return parts.filter((part) => part !== "");
}

function wordElement(text, word, support, isWrong, focusable) {
  const isSeen = !isWrong && support >= audit.words.borneOut; // less says nothing, as of "the" or "with"
  const element = make("span", {class: `word ${isWrong ? "wrong" : isSeen ? "seen" : "open"}`, data: {word}}, text);
  element.style.setProperty("--strength", (isWrong ? 1 - support : support).toFixed(3));
  if (focusable) {
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    element.setAttribute("aria-pressed", "false");
    element.setAttribute("aria-label", `${text}: ${isWrong ? "not borne out" : isSeen ? "borne out" : "open"}, support ${percent(support)}`);
  }
  return element;
}
