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

/** Where a row's picture lies on the sheets, or null where it has none. */
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

/** Paint a row's picture, with a word's heat map over it if `word` is not -1, once its sheets are there. */
function paint(canvas, row, word = -1, load = true) {
  const want = {row, word};
  wanted.set(canvas, want);
  const picture = thumbnailOf(row);
  const heat = heatOf(row, word);
  const image = picture && sheetImage(picture.sheet, load);
  const map = heat && sheetImage(heat.sheet, load);
  const isReady = (tile, sheet) => !tile || sheet?.complete;
  if (isReady(picture, image) && isReady(heat, map)) {
    drawTiles(canvas, picture, image, heat, map);
    return;
  }
  if (canvas.dataset.row !== String(row)) clearCanvas(canvas);
  canvas.dataset.row = row;
  if (!load) return;
  const sheetsWanted = [image, map].filter(Boolean);
  Promise.all(sheetsWanted.map((sheet) => sheet.decode().catch(() => null))).then(() => {
    if (wanted.get(canvas) === want) drawTiles(canvas, picture, image, heat, map);
  });
}

function clearCanvas(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  canvas.classList.remove("absent");
}

/** Draw the tile `picture` of its sheet `image`, and over it the tile `heat` of `map`, where there is one. */
function drawTiles(canvas, picture, image, heat, map) {
  const context = canvas.getContext("2d");
  clearCanvas(canvas);
  if (!image || image.naturalWidth === 0) {
    canvas.classList.add("absent"); // unreadable, or the folder beside the page is gone
    return;
  }
  const scale = Math.min(canvas.width / picture.width, canvas.height / picture.height);
  const width = picture.width * scale, height = picture.height * scale;
  const box = [(canvas.width - width) / 2, (canvas.height - height) / 2, width, height];
  context.imageSmoothingQuality = "high";
  context.drawImage(image, picture.x, picture.y, picture.width, picture.height, ...box);
  if (map && map.naturalWidth > 0) {
    context.fillStyle = "rgb(8 10 20 / 0.42)"; // so that the heat stands out on bright pictures
    context.fillRect(...box);
    context.drawImage(map, heat.x, heat.y, heat.width, heat.height, ...box);
  }
}

/** Give the large canvas the shape of its picture, sharp on dense screens. */
function shapeCanvas(canvas, row) {
  const picture = thumbnailOf(row);
  const side = 336 * Math.min(2, Math.max(1, devicePixelRatio));
  const longest = picture ? Math.max(picture.width, picture.height) : 1;
  const width = Math.round(side * (picture ? picture.width / longest : 1));
  const height = Math.round(side * (picture ? picture.height / longest : 1));
  if (canvas.width === width && canvas.height === height) return;
  canvas.width = width;
  canvas.height = height;
}

/** A caption as text with its judged words marked; `focusable` words can be reached by keyboard. */
function markedCaption(parent, row, focusable) {
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
  return fill(parent, ...parts.filter((part) => part !== ""));
}

const SEEN_FROM = 0.65; // support; less than that says nothing, as of "the" or "with"

function wordElement(text, word, support, isWrong, focusable) {
  const isSeen = !isWrong && support >= SEEN_FROM;
  const element = make("span", `word ${isWrong ? "wrong" : isSeen ? "seen" : "open"}`, text);
  element.style.setProperty("--strength", (isWrong ? 1 - support : support).toFixed(3));
  element.dataset.word = word;
  if (focusable) {
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    element.setAttribute("aria-pressed", "false");
    element.setAttribute("aria-label", `${text}: ${isWrong ? "not borne out" : isSeen ? "borne out" : "open"}, support ${percent(support)}`);
  }
  return element;
}
