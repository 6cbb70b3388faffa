// Which pairs are shown and in what order: one pass over an order that is computed once.

const orders = {rank: Uint32Array.from(audit.pairs.keys())};
const collator = new Intl.Collator(undefined, {numeric: true, sensitivity: "base"});
let foldedCaptions = null, foldedPairs = null, foldedImages = null;

/** Rows in the wanted order; ties stay in order of rank. */
function orderOf(sort) {
  orders[sort] ??= orders.rank.slice().sort(COMPARE[sort]());
  return orders[sort];
}

/** The alphabetical place of every string, so that sorting rows compares numbers only. */
function alphabeticalPlaces(strings) {
  const places = new Uint32Array(strings.length);
  Array.from(strings.keys()).sort((a, b) => collator.compare(strings[a], strings[b])).forEach((code, place) => {
    places[code] = place;
  });
  return places;
}

const COMPARE = {
  "p-up": () => (a, b) => probabilityOr(a, 2) - probabilityOr(b, 2) || a - b,
  "p-down": () => (a, b) => probabilityOr(b, -1) - probabilityOr(a, -1) || a - b,
  caption: () => byPlace(audit.captions, audit.caption),
  label: () => byPlace(audit.labels, audit.label),
};

/** The row's probability; pairs that were not judged count as `missing`, to stand last. */
function probabilityOr(row, missing) {
  return Number.isNaN(audit.p[row]) ? missing : audit.p[row];
}

function byPlace(strings, codes) {
  const places = alphabeticalPlaces(strings);
  return (a, b) => places[codes[a]] - places[codes[b]] || a - b;
}

const fold = (text) => text.normalize("NFC").toLowerCase();

/** A test whether a row holds the text in its captions, ids or file names; null where all rows do. */
function textTest(text) {
  const sought = fold(text.trim());
  if (sought === "") return null;
  foldedCaptions ??= audit.captions.map(fold);
  foldedPairs ??= audit.pairs.map(fold);
  foldedImages ??= audit.images.map(fold);
  const inCaption = Uint8Array.from(foldedCaptions, (caption) => caption.includes(sought));
  const inImage = Uint8Array.from(foldedImages, (image) => image.includes(sought));
  const {first, caption} = audit.proposals;
  return (row) => {
    if (inCaption[audit.caption[row]] || inImage[audit.image[row]] || foldedPairs[row].includes(sought)) return true;
    for (let i = first[row]; i < first[row + 1]; i++) if (inCaption[caption[i]]) return true;
    return false;
  };
}

function decidedTest(wanted) {
  if (wanted === "") return null;
  if (wanted === "undecided") return (row) => !decisionOf(row);
  if (wanted === "decided") return (row) => decisionOf(row) !== undefined;
  return (row) => decisionOf(row)?.action === wanted;
}

/** Rows with one kind of issue; "any" is any of them, "none" is no issue but mismatch. */
function issueTest(wanted) {
  if (wanted === "") return null;
  if (wanted === "any") return (row) => audit.issues.mask[row] !== 0;
  if (wanted === "none") return (row) => audit.issues.mask[row] === 0;
  return (row) => (audit.issues.mask[row] & (1 << Number(wanted))) !== 0;
}

/** Every kind with the number of its pairs; without any issue there is nothing to choose. */
function fillIssues(select) {
  const counts = audit.issues.types.map((_, kind) => audit.issues.mask.filter((mask) => mask & (1 << kind)).length);
  const options = counts.flatMap((pairs, kind) => (pairs > 0 ? [new Option(`${issueName(kind)} (${count(pairs)})`, kind)] : []));
  select.replaceChildren(new Option("all", ""), ...options, new Option("any of these", "any"), new Option("none of these", "none"));
  select.closest("label").hidden = options.length === 0;
}

/** Verdicts beside the truth, where that is known. */
function truthTest(wanted) {
  const test = {
    mismatched: isMismatched,
    matched: (row) => !isMismatched(row),
    missed: (row) => isMismatched(row) && audit.flag[row] === 0,
    false: (row) => !isMismatched(row) && audit.flag[row] === 1,
  };
  return wanted === "" ? null : test[wanted];
}

function hasWrongWord(row) {
  return audit.words.wrong.subarray(audit.words.first[row], audit.words.first[row + 1]).includes(1);
}

/** Rows that pass every filter, in the wanted order. */
function matchingRows(filters) {
  const tests = [
    filters.split === "" ? null : (row) => audit.split[row] === Number(filters.split),
    filters.label === "" ? null : (row) => audit.label[row] === Number(filters.label),
    issueTest(filters.issue),
    filters.flagged ? (row) => audit.flag[row] === 1 : null,
    filters.red ? hasWrongWord : null,
    filters.low === 0 && filters.high === 1
      ? null
      : (row) => audit.p[row] >= filters.low && audit.p[row] <= filters.high,
    decidedTest(filters.decided),
    truthTest(filters.truth),
    textTest(filters.text),
  ].filter(Boolean);
  return orderOf(filters.sort).filter((row) => tests.every((test) => test(row)));
}

function readFilters() {
  return {
    text: byId("text").value,
    split: byId("split").value,
    label: byId("label").value,
    issue: byId("issue").value,
    decided: byId("decided").value,
    truth: byId("truth").value,
    flagged: byId("flagged").checked,
    red: byId("red").checked,
    low: Number(byId("low").value) / 100,
    high: Number(byId("high").value) / 100,
    sort: byId("sort").value,
  };
}

/** Offer every value of a column, A to Z, with "all" first; a column of one value needs no filter. */
function fillSelect(select, strings, nameless) {
  const places = alphabeticalPlaces(strings);
  const codes = Array.from(strings.keys()).sort((a, b) => places[a] - places[b]);
  const options = codes.map((code) => new Option(strings[code] || nameless, code));
  select.replaceChildren(new Option("all", ""), ...options);
  select.closest("label").hidden = strings.length < 2;
}

/** How the probabilities are spread, flagged pairs apart, behind the two sliders. */
function drawHistogram() {
  const canvas = byId("histogram");
  const context = canvas.getContext("2d");
  const bins = 50, all = new Uint32Array(bins), flagged = new Uint32Array(bins);
  for (let row = 0; row < audit.p.length; row++) {
    if (Number.isNaN(audit.p[row])) continue;
    const bin = Math.min(bins - 1, Math.max(0, Math.floor(audit.p[row] * bins)));
    all[bin]++;
    flagged[bin] += audit.flag[row];
  }
  const most = Math.sqrt(Math.max(1, ...all)), width = canvas.width / bins; // roots, so that small bins are seen
  const styles = getComputedStyle(document.documentElement);
  const {low, high} = readFilters();
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (let bin = 0; bin < bins; bin++) {
    const inside = (bin + 1) / bins > low && bin / bins < high;
    for (const [number, colour] of [[all[bin], "--bar"], [flagged[bin], "--wrong"]]) {
      const height = number ? Math.max(2, (Math.sqrt(number) / most) * canvas.height) : 0;
      context.globalAlpha = inside ? 0.85 : 0.2;
      context.fillStyle = styles.getPropertyValue(colour);
      context.fillRect(bin * width, canvas.height - height, width - 1, height);
    }
  }
}
