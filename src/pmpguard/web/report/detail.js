// The selected pair in full: image, marked caption, proposals, evidence, and the caption's editor.

const detail = byId("detail");
const image = byId("image");
let editing = false;

function showDetail() {
  const row = selectedRow();
  detail.hidden = row < 0;
  if (row < 0) return;
  if (editing) closeEditor();
  byId("place").textContent = `Rank ${count(audit.rank[row])} of ${count(audit.pairs.length)}`;
  shapeCanvas(image, row);
  image.setAttribute("aria-label", `Image ${imageOf(row)}`);
  showHeat(-1);
  showVerdict(row);
  showTruth(row);
  byId("caption").replaceChildren(...markedCaption(row, true));
  showWrongWords(row);
  showIssues(row);
  showProposals(row);
  showEvidence(row);
  showDecision(row);
  const names = [["pair", audit.pairs[row]], ["image", imageOf(row)], ["class", labelOf(row)], ["split", splitOf(row)]];
  const parts = names.filter(([, value]) => value).flatMap(([name, value]) => [make("b", {}, name), ` ${value} `]);
  byId("names").replaceChildren(...parts);
  const next = view[cursor + 1];
  if (next !== undefined && thumbnailOf(next)) sheetImage(thumbnailOf(next).sheet, true);
}

function showVerdict(row) {
  const p = audit.p[row];
  setMeter(byId("verdict-bar"), p, audit.flag[row] === 1);
  byId("verdict-p").textContent = Number.isNaN(p) ? "Not judged" : percent(p);
  byId("verdict-text").textContent = Number.isNaN(p) ? "" : "likely to match";
  byId("verdict-chip").textContent = audit.flag[row] ? "Flagged" : "";
}

/** What is known of the pair where noise was injected: whether it is mismatched, and the caption it had before. */
function showTruth(row) {
  const chip = byId("truth-chip");
  chip.textContent = truthOf(row) === null ? "" : isMismatched(row) ? "Truth: mismatched" : "Truth: matched";
  chip.dataset.agrees = isMismatched(row) === (audit.flag[row] === 1);
  byId("true-caption").hidden = !isMismatched(row);
  byId("true-caption").querySelector("p").textContent = truthOf(row) ?? "";
}

function showWrongWords(row) {
  const {first, start, length, wrong} = audit.words;
  const text = captionOf(row);
  const found = [];
  for (let word = first[row]; word < first[row + 1]; word++) {
    if (wrong[word]) found.push(text.slice(start[word], start[word] + length[word]));
  }
  byId("wrong-words").textContent = found.length > 0 ? `Not borne out: ${found.join(", ")}` : "";
}

/** Every other issue of the pair, with what was found; a button shows all pairs that have it. */
function showIssues(row) {
  const items = issuesOf(row).map((kind) => {
    const button = make("button", {type: "button", class: "badge", data: {issue: kind}, title: `Show all pairs: ${issueName(kind)}`}, issueName(kind));
    return make("li", {}, button, make("span", {}, issueNote(row, kind)));
  });
  byId("issues").replaceChildren(...items);
}

function showProposals(row) {
  const proposals = proposalsOf(row);
  byId("proposals").hidden = proposals.length === 0;
  detail.querySelector("[data-action=accept]").disabled = proposals.length === 0;
  const items = proposals.map((proposal, index) => {
    const line = make("span", {class: "source"}, meterOf(proposal.p), make("span", {class: "p"}, percent(proposal.p)),
      make("span", {class: "from"}, `from ${proposal.source}`), isSureEnough(proposal) ? null : make("span", {}, "unlikely"));
    return make("li", {}, make("button", {type: "button", class: "proposal", data: {proposal: index}},
      make("kbd", {}, index < 9 ? String(index + 1) : "·"), make("span", {class: "caption", dir: "auto"}, proposal.caption), line));
  });
  byId("proposals").querySelector("ol").replaceChildren(...items);
}

function showEvidence(row) {
  const parts = audit.evidence.filter((part) => !Number.isNaN(part.values[row]));
  byId("evidence").hidden = parts.length === 0;
  const items = parts.map((part) => {
    const share = shareBelow(part, part.values[row]);
    const meter = meterOf(share, share < 0.1);
    meter.title = `higher than ${percent(share)} of the pairs`;
    return make("div", {}, make("dt", {}, part.name.replaceAll("_", " ")),
      make("dd", {}, meter, make("span", {class: "number"}, part.values[row].toFixed(3)),
        make("span", {class: "hidden"}, `, higher than ${percent(share)} of the pairs`)));
  });
  byId("evidence").querySelector("dl").replaceChildren(...items);
}

/** What was decided about the selected pair, and what can still be undone. */
function showDecision(row) {
  const decision = decisionOf(row);
  const chip = byId("decision");
  chip.className = "chip";
  chip.textContent = decision ? ACTIONS[decision.action] : "";
  chip.dataset.action = decision?.action ?? "";
  detail.dataset.action = decision?.action ?? "";
  const replacement = byId("replacement");
  replacement.hidden = decision?.caption === undefined;
  replacement.querySelector("p").textContent = decision?.caption ?? "";
  for (const button of detail.querySelectorAll(".proposal")) {
    const isChosen = decision?.action === "accept" && button.querySelector(".caption").textContent === decision.caption;
    button.classList.toggle("chosen", isChosen);
  }
  detail.querySelector("[data-action=clear]").hidden = !decision;
  detail.querySelector("[data-action=undo]").disabled = steps.length === 0;
}

/** Paint a word's regions over the large image; -1 for none. */
function showHeat(word) {
  const row = selectedRow();
  if (row < 0) return;
  paint(image, row, word);
  for (const element of byId("caption").querySelectorAll(".word")) {
    element.classList.toggle("lit", Number(element.dataset.word) === word);
  }
  showLegend(row, word);
}

followWords(byId("caption"), (element) => showHeat(element === null ? -1 : Number(element.dataset.word)));

function showLegend(row, word) {
  const legend = byId("legend");
  if (word < 0) {
    const {first, mapped} = audit.words;
    const canShow = mapped.subarray(first[row], first[row + 1]).includes(1);
    const hint = thumbnailOf(row) ? (canShow ? "Point at a word to see where it is" : "") : "This image could not be read";
    legend.textContent = hint;
    return;
  }
  const {start, length, support} = audit.words;
  const text = captionOf(row).slice(start[word], start[word] + length[word]);
  legend.replaceChildren(make("q", {dir: "auto"}, text), ` support ${percent(support[word] / 255)}`,
    audit.words.mapped[word] ? make("i", {class: "scale"}) : "");
}

function openEditor() {
  const row = selectedRow();
  if (row < 0) return;
  editing = true;
  byId("editor").hidden = false;
  byId("caption").hidden = true;
  const field = byId("edited");
  field.value = decisionOf(row)?.caption ?? captionOf(row);
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
}

function closeEditor() {
  editing = false;
  byId("editor").hidden = true;
  byId("caption").hidden = false;
  (document.body.classList.contains("reviewing") ? detail : list).focus({preventScroll: true});
}
