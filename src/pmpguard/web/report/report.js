// The page put together: header, filters, keys and buttons.

/** Move the selection to a position of the list, as far as there is one. */
function select(position) {
  if (view.length === 0) return;
  cursor = Math.min(view.length - 1, Math.max(0, position));
  bringIntoView();
  renderList(false);
  showDetail();
}

function applyFilters(instead = 0) {
  showRows(matchingRows(readFilters()), instead);
  showDetail();
  showCount();
  drawHistogram();
  const {low, high} = readFilters();
  byId("range-text").textContent = `${Math.round(low * 100)}–${Math.round(high * 100)} %`;
}

function showCount() {
  const total = audit.pairs.length;
  const shown = view.length === total ? `${count(total)} pairs` : `${count(view.length)} of ${count(total)} pairs`;
  byId("count").textContent = decisions.size > 0 ? `${shown} · ${count(decisions.size)} decided` : shown;
  byId("nothing").hidden = view.length > 0;
  byId("nothing").textContent = total > 0 ? "No pair passes these filters." : "The audit judged no pairs.";
}

/** Decide about the selected pair and go on to the next. */
function decide(decision, what) {
  const row = selectedRow();
  if (row < 0) return;
  const isSame = applyStep([[audit.pairs[row], decision]]) === 0;
  announce(`${what}: ${audit.pairs[row]}`);
  refresh();
  if (isSame || selectedRow() === row) select(cursor + 1); // a pair that its decision filtered out has gone by itself
}

function acceptProposal(index) {
  const row = selectedRow();
  const proposal = row < 0 ? undefined : proposalsOf(row)[index];
  if (!proposal) announce(index === 0 ? "There is no proposal for this pair." : `There is no proposal ${index + 1}.`);
  else decide({action: "accept", caption: proposal.caption}, "Replaced");
}

function saveEdit() {
  const row = selectedRow();
  const caption = byId("edited").value.replace(/\s*\n\s*/g, " ").trim();
  if (caption === "") return announce("A caption cannot be empty; drop the pair instead.");
  closeEditor();
  if (caption === captionOf(row)) return announce("The caption is unchanged.");
  return decide({action: "edit", caption}, "Edited");
}

function undo() {
  const pairs = undoStep();
  if (!pairs) return announce("There is nothing to undo.");
  refresh();
  const position = view.indexOf(audit.rowOf.get(pairs[0]));
  if (position >= 0) select(position);
  return announce(pairs.length === 1 ? `Undone: ${pairs[0]}` : `Undone: ${count(pairs.length)} decisions.`);
}

/** After decisions changed: what is shown of them, and the list where it is filtered by them. */
function refresh() {
  if (byId("decided").value !== "") {
    applyFilters(cursor);
    return;
  }
  for (const [position, element] of shownRows) fillDecision(element, view[position]);
  if (selectedRow() >= 0) showDecision(selectedRow());
  showCount();
}

const DO = {
  accept: () => acceptProposal(0),
  keep: () => decide({action: "keep"}, "Kept"),
  drop: () => decide({action: "drop"}, "Dropped"),
  edit: openEditor,
  clear: () => {
    if (applyStep([[audit.pairs[selectedRow()], undefined]]) > 0) announce("Decision cleared.");
    refresh();
  },
  undo,
};

const pageOfRows = () => Math.max(1, Math.floor(list.clientHeight / rowHeight) - 1);
const KEYS = {
  j: () => select(cursor + 1),
  ArrowDown: () => select(cursor + 1),
  k: () => select(cursor - 1),
  ArrowUp: () => select(cursor - 1),
  PageDown: () => select(cursor + pageOfRows()),
  PageUp: () => select(cursor - pageOfRows()),
  Home: () => select(0),
  End: () => select(view.length - 1),
  a: DO.accept, y: DO.keep, d: DO.drop, e: DO.edit, r: DO.clear, u: DO.undo,
  "/": () => byId("text").focus(),
  i: () => {
    if (byId("issue").closest("label").hidden) { announce("There are no other issues."); return; }
    byId("filters").classList.add("open"); // on a phone the filters are folded away
    byId("filters-toggle").setAttribute("aria-expanded", "true");
    byId("issue").focus();
  },
  "?": () => byId("help").showModal(),
  Escape: () => document.body.classList.remove("reviewing"),
};
for (let number = 1; number <= 9; number++) KEYS[number] = () => acceptProposal(number - 1);

const takesText = (element) => element.matches("textarea, select, input:not([type=checkbox])");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const target = event.target;
  if (target.id === "edited") {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); saveEdit(); }
    if (event.key === "Escape") closeEditor();
    return;
  }
  if (target.id === "text" && (event.key === "Enter" || event.key === "Escape")) {
    event.preventDefault();
    list.focus();
    return;
  }
  if (target.id === "issue" && event.key === "Escape") {
    event.preventDefault();
    list.focus();
    return;
  }
  if (takesText(target) || byId("help").open) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!Object.hasOwn(KEYS, key)) return;
  event.preventDefault();
  KEYS[key]();
});

list.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  select(Number(row.dataset.position));
  document.body.classList.add("reviewing"); // on a phone, the pair takes the screen
});

detail.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.action) DO[button.dataset.action]();
  else if (button?.dataset.proposal) acceptProposal(Number(button.dataset.proposal));
  else if (button?.dataset.issue) {
    byId("issue").value = button.dataset.issue;
    applyFilters();
    announce(`Pairs with the issue: ${issueName(Number(button.dataset.issue))}`);
  }
});

const onClick = (id, act) => byId(id).addEventListener("click", act);
onClick("previous", () => select(cursor - 1));
onClick("next", () => select(cursor + 1));
onClick("back", () => { document.body.classList.remove("reviewing"); list.focus(); });
onClick("edit-save", saveEdit);
onClick("edit-cancel", closeEditor);
onClick("download", downloadDecisions);
onClick("autosave", chooseFile);
onClick("load", () => byId("loaded").click());
onClick("help-open", () => byId("help").showModal());
onClick("filters-toggle", () => {
  const isOpen = byId("filters").classList.toggle("open");
  byId("filters-toggle").setAttribute("aria-expanded", String(isOpen));
});

byId("loaded").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = ""; // so that the same file can be chosen again
  if (!file) return;
  try {
    const {read, refused} = readDecisions(await file.text());
    applyStep(read);
    refresh();
    const rest = refused > 0 ? `; ${count(refused)} were of unknown pairs or not valid` : "";
    announce(`${count(read.length)} decisions loaded${rest}.`);
  } catch (error) {
    announce(`${file.name}: ${error.message}.`);
  }
});

let filterTimer = 0;
byId("filters").addEventListener("input", (event) => {
  if (event.target.id === "low") byId("high").value = Math.max(event.target.value, byId("high").value);
  if (event.target.id === "high") byId("low").value = Math.min(event.target.value, byId("low").value);
  clearTimeout(filterTimer);
  filterTimer = setTimeout(() => applyFilters(), event.target.id === "text" ? 120 : 0);
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => setTimeout(() => applyFilters()));
byId("sort").addEventListener("change", () => { cursor = 0; view = new Uint32Array(0); applyFilters(); });
addEventListener("pagehide", saveNow);
addEventListener("storage", (event) => { // another tab of this report decided something
  if (event.key !== storageKey) return;
  decisions.clear();
  restoreDecisions();
  refresh();
});
document.addEventListener("visibilitychange", () => { if (document.visibilityState === "hidden") saveNow(); });
new ResizeObserver(() => { showRows(view, cursor); }).observe(list);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHistogram);

function figure(name, value, note = "") {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), note ? make("dd", {class: "note"}, note) : null);
}

/** How many pairs are mismatched in truth, where noise was injected, and how many of them were flagged. */
function truthFigure() {
  if (audit.truth === null) return [];
  const rows = [...audit.pairs.keys()];
  const mismatched = rows.filter(isMismatched);
  const found = mismatched.filter((row) => audit.flag[row] === 1).length;
  return [figure("Truly mismatched", count(mismatched.length), `${count(found)} of them flagged`)];
}

/** null is what nobody looked at. */
function readability(unreadable) {
  if (unreadable === null) return "not looked at";
  return unreadable > 0 ? `${count(unreadable)} unreadable` : "all readable";
}

const copies = (images) => (images === null ? "images not looked at" : several(images, "image"));

function showSummary() {
  const {summary} = audit;
  const about = [summary.model && `judged by ${summary.model}`, summary.dataset && `dataset ${summary.dataset.slice(0, 12)}`];
  byId("about").textContent = about.filter(Boolean).join(" · ");
  const interval = summary.interval?.map((end) => percent(end, 1)).join(" to ");
  byId("figures").replaceChildren(
    figure("Estimated mismatched", summary.rate === null ? "not known" : percent(summary.rate, 1), interval && `95 %: ${interval}`),
    figure("Flagged", count(summary.flagged), `of ${count(summary.pairs)} pairs`),
    ...truthFigure(),
    figure("Images", count(summary.images), readability(summary.unreadable)),
    figure("Duplicates", count(summary.duplicatePairs + (summary.duplicateImages ?? 0)),
      `${several(summary.duplicatePairs, "pair")}, ${copies(summary.duplicateImages)}`));
  byId("sure-enough").textContent = percent(audit.proposals.sureEnough);
  const notes = [];
  if (summary.warnings.length > 0) notes.push(note("Before you read the numbers", summary.warnings, true));
  if (summary.unreadable > 0) {
    const more = summary.unreadable - summary.unreadableNames.length;
    const names = more > 0 ? [...summary.unreadableNames, `and ${count(more)} more`] : summary.unreadableNames;
    notes.push(note(`${count(summary.unreadable)} unreadable images, their pairs are not judged`, names, false));
  }
  byId("notes").replaceChildren(...notes);
}

function note(title, lines, isOpen) {
  const items = lines.map((line) => make("li", {}, line));
  return make("details", {open: isOpen}, make("summary", {}, title), make("ul", {}, ...items));
}

showSummary();
fillSelect(byId("split"), audit.splits, "(none)");
fillSelect(byId("label"), audit.labels, "(none)");
fillIssues(byId("issue"));
byId("truth").closest("label").hidden = audit.truth === null;
byId("autosave").hidden = !("showSaveFilePicker" in window);
restoreDecisions();
applyFilters();
list.focus({preventScroll: true});
performance.mark("pairs-shown");
