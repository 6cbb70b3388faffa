// The audit as typed arrays: one entry per pair (row 0 is the most suspicious), per word or per proposal.

const ARRAYS = {u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array};

function unpack(column) {
  const text = atob(column.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[column.type](bytes.buffer);
}

/** Where each row's items begin, given how many it has; one entry more than rows. */
function startsOf(counts) {
  const starts = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) starts[i + 1] = starts[i] + counts[i];
  return starts;
}

/** Unpack every column, at any depth; a packed column is an object with `type` and `data`. */
function unpackAll(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if (typeof value.type === "string" && typeof value.data === "string") return unpack(value);
  for (const key of Object.keys(value)) value[key] = unpackAll(value[key]);
  return value;
}

function readAudit(element) {
  const raw = JSON.parse(element.textContent);
  element.remove(); // the text is large, and no longer needed
  const {sheets, evidence, ...columns} = raw;
  const audit = unpackAll(columns);
  audit.sheets = sheets;
  audit.evidence = evidence.map(({name, values}) => ({name, values: unpack(values), sorted: null}));
  audit.words.first = startsOf(audit.words.counts);
  audit.proposals.first = startsOf(audit.proposals.counts);
  audit.rowOf = new Map(audit.pairs.map((pair, row) => [pair, row]));
  return audit;
}

const audit = readAudit(byId("data"));

const captionOf = (row) => audit.captions[audit.caption[row]];
const imageOf = (row) => audit.images[audit.image[row]];
const labelOf = (row) => audit.labels[audit.label[row]];
const splitOf = (row) => audit.splits[audit.split[row]];

/** The kinds of issues a row has beside mismatch, as codes of `audit.issues.types`. */
function issuesOf(row) {
  const {mask, types} = audit.issues;
  return [...types.keys()].filter((kind) => mask[row] & (1 << kind));
}

/** A kind of issue as it is shown: its name without underscores, and how it is called in few letters. */
const issueName = (kind) => audit.issues.types[kind].replaceAll("_", " ");
const SHORT_ISSUES = {duplicate_caption: "repeated", near_duplicate_image: "copy"};
const issueBadge = (kind) => SHORT_ISSUES[audit.issues.types[kind]] ?? issueName(kind);

/** What was found of one kind in a row, without the kind's name. */
function issueNote(row, kind) {
  const told = audit.issues.notes[audit.issues.note[row]].split("; ").find((one) => one.startsWith(`${audit.issues.types[kind]}: `));
  return told === undefined ? "" : told.slice(audit.issues.types[kind].length + 2);
}

/** What the row's caption was before noise was injected, or null where the truth is not known. */
const truthOf = (row) => (audit.truth === null ? null : audit.captions[audit.truth.caption[row]]);
const isMismatched = (row) => audit.truth !== null && audit.truth.mismatched[row] === 1;

/** A row's proposals, likeliest first, as {caption, p, source}. */
function proposalsOf(row) {
  const found = [];
  const {first, caption, p, source, sources} = audit.proposals;
  for (let i = first[row]; i < first[row + 1]; i++) {
    found.push({caption: audit.captions[caption[i]], p: p[i], source: sources[source[i]]});
  }
  return found.sort((a, b) => b.p - a.p);
}

/** Whether a proposal is likely enough to be taken without a look, as `pmpguard clean` would. */
const isSureEnough = (proposal) => proposal.p >= audit.proposals.sureEnough;

/** The share of pairs whose value is lower than this one's, in [0, 1]. */
function shareBelow(part, value) {
  part.sorted ??= part.values.filter((number) => !Number.isNaN(number)).sort();
  let low = 0, high = part.sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (part.sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return part.sorted.length > 1 ? low / (part.sorted.length - 1) : 0.5;
}
