// What the reviewer decided: kept in this browser for the dataset, saved to a file, every step undoable.

const ACTIONS = {keep: "Kept", drop: "Dropped", accept: "Replaced", edit: "Edited"};
const decisions = new Map(); // pair id -> {action} or {action, caption}
const steps = []; // for undo: each a list of [pair id, what was there before or undefined]
const storageKey = `pmpguard-audit:${audit.summary.dataset || location.pathname}`;
let saveTimer = 0;
let savedFile = null; // a file handle that follows every decision, where the browser offers that

const decisionOf = (row) => decisions.get(audit.pairs[row]);

function sameDecision(one, other) {
  return one?.action === other?.action && one?.caption === other?.caption;
}

/** Make changes as one step; those that change nothing are left out. Gives the number of changes. */
function applyStep(changes) {
  const before = [];
  for (const [pair, decision] of changes) {
    if (sameDecision(decisions.get(pair), decision)) continue;
    before.push([pair, decisions.get(pair)]);
    putDecision(pair, decision);
  }
  if (before.length > 0) {
    steps.push(before);
    saveSoon();
  }
  return before.length;
}

function putDecision(pair, decision) {
  if (decision) decisions.set(pair, decision); else decisions.delete(pair);
}

/** Take the latest step back; gives the pairs it touched, or null where there is none. */
function undoStep() {
  const before = steps.pop();
  if (!before) return null;
  for (const [pair, decision] of before) putDecision(pair, decision);
  saveSoon();
  return before.map(([pair]) => pair);
}

function decisionsText() {
  const content = {dataset: audit.summary.dataset, decisions: Object.fromEntries(decisions)};
  return JSON.stringify(content, null, 2) + "\n";
}

/** Read a decisions file's text; throws an Error that says what is wrong with it. */
function readDecisions(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error("this is not a JSON file");
  }
  if (typeof content?.decisions !== "object" || content.decisions === null || Array.isArray(content.decisions)) {
    throw new Error("this file holds no decisions");
  }
  if (content.dataset !== audit.summary.dataset) {
    throw new Error(`these decisions are about another dataset (${String(content.dataset).slice(0, 16)})`);
  }
  const read = [];
  let refused = 0;
  for (const [pair, decision] of Object.entries(content.decisions)) {
    const clean = cleanDecision(decision);
    if (clean && audit.rowOf.has(pair)) read.push([pair, clean]); else refused++;
  }
  return {read, refused};
}

/** The decision with nothing but its known fields, or null where it is none. */
function cleanDecision(decision) {
  if (!decision || !Object.hasOwn(ACTIONS, decision.action)) return null;
  if (decision.action === "keep" || decision.action === "drop") return {action: decision.action};
  const caption = decision.caption;
  return typeof caption === "string" && caption.trim() ? {action: decision.action, caption} : null;
}

function restoreDecisions() {
  let text = null;
  try {
    text = localStorage.getItem(storageKey);
  } catch {
    announce("This browser keeps nothing: download your decisions before you close the page.");
  }
  if (text === null) return;
  try {
    for (const [pair, decision] of readDecisions(text).read) decisions.set(pair, decision);
  } catch (error) {
    announce(`The decisions kept in this browser could not be read: ${error.message}.`);
  }
}

function saveSoon() {
  clearTimeout(saveTimer);
  saveTimer = setTimeout(saveNow, 150);
}

function saveNow() {
  if (saveTimer === 0) return;
  clearTimeout(saveTimer);
  saveTimer = 0;
  const text = decisionsText();
  try {
    localStorage.setItem(storageKey, text);
  } catch {
    announce("This browser cannot keep the decisions: download them before you close the page.");
  }
  if (savedFile) writeFile(text);
}

async function writeFile(text) {
  try {
    const stream = await savedFile.createWritable();
    await stream.write(text);
    await stream.close();
  } catch (error) {
    announce(`The file could not be written (${error.message}): download the decisions instead.`);
    savedFile = null;
  }
}

async function chooseFile() {
  try {
    const types = [{description: "Decisions", accept: {"application/json": [".json"]}}];
    savedFile = await showSaveFilePicker({suggestedName: "decisions.json", types});
  } catch {
    return; // closed without choosing
  }
  await writeFile(decisionsText());
  if (savedFile) announce(`${savedFile.name} now follows every decision.`);
}

function downloadDecisions() {
  download("decisions.json", decisionsText(), "application/json");
  announce(`${count(decisions.size)} decisions written to decisions.json.`);
}

let announceTimer = 0;

/** Tell what happened, to eyes and screen readers alike. */
function announce(text) {
  const place = byId("announce");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => place.classList.remove("shown"), 3500);
}
