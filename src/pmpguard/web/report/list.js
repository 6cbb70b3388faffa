// The list: however many pairs there are, only the rows in sight exist.

const OVERSCAN = 4; // rows ready above and below
const SETTLED = 70; // milliseconds without scrolling before missing sheets are loaded
const list = byId("list");
const spacer = byId("spacer");
const shownRows = new Map(); // position -> element
const spareRows = [];
const template = byId("row").content.firstElementChild;
let view = new Uint32Array(0); // rows of the audit, in the order shown
let cursor = 0; // position of the selected pair in `view`
let rowHeight = 112;
let frame = 0, settleTimer = 0;

const selectedRow = () => (view.length > 0 ? view[cursor] : -1);

/** Show these rows; the selected pair stays selected, or else `instead` is the position that becomes so. */
function showRows(rows, instead) {
  const selected = selectedRow();
  view = rows;
  const kept = rows.indexOf(selected);
  cursor = kept >= 0 ? kept : Math.min(instead, Math.max(0, rows.length - 1));
  rowHeight = parseFloat(getComputedStyle(list).getPropertyValue("--row"));
  spacer.style.height = `${rows.length * rowHeight}px`;
  forgetRows();
  bringIntoView();
  renderList(true);
}

function forgetRows() {
  for (const element of shownRows.values()) spareRows.push(element);
  shownRows.clear();
}

/** Give every position in sight its element; `load` also fetches the sheets they need. */
function renderList(load) {
  const first = Math.max(0, Math.floor(list.scrollTop / rowHeight) - OVERSCAN);
  const last = Math.min(view.length, Math.ceil((list.scrollTop + list.clientHeight) / rowHeight) + OVERSCAN);
  for (const [position, element] of shownRows) {
    if (position >= first && position < last) continue;
    shownRows.delete(position);
    spareRows.push(element);
  }
  for (let position = first; position < last; position++) {
    const known = shownRows.get(position);
    if (known && !load) continue;
    const element = known ?? spareRows.pop() ?? template.cloneNode(true);
    if (!known) fillRow(element, position);
    paint(element.firstElementChild, view[position], -1, load);
    if (!element.isConnected) spacer.append(element);
    shownRows.set(position, element);
  }
  for (const element of spareRows) element.remove();
  spareRows.length = Math.min(spareRows.length, 40);
  markSelected();
}

function fillRow(element, position) {
  const row = view[position];
  element.id = `row-${position}`;
  element.dataset.position = position;
  element.style.transform = `translateY(${position * rowHeight}px)`;
  element.setAttribute("aria-setsize", view.length);
  element.setAttribute("aria-posinset", position + 1);
  element.classList.toggle("flagged", audit.flag[row] === 1);
  const part = (name) => element.querySelector(name);
  part(".rank").textContent = count(audit.rank[row]);
  part(".tags").textContent = [labelOf(row), splitOf(row)].filter(Boolean).join(" · ");
  const badges = issuesOf(row).map((kind) => make("span", {class: "badge", title: `${issueName(kind)}: ${issueNote(row, kind)}`}, issueBadge(kind)));
  part(".badges").replaceChildren(...badges);
  setMeter(part(".meter"), audit.p[row], audit.flag[row] === 1);
  part(".p").textContent = percent(audit.p[row]);
  part(".caption").replaceChildren(...markedCaption(row, false));
  const truth = part(".truth");
  truth.textContent = truthOf(row) === null ? "" : isMismatched(row) ? "mismatched" : "matched";
  truth.dataset.agrees = isMismatched(row) === (audit.flag[row] === 1);
  fillDecision(element, row);
}

/** The row's last line: what was decided, else the best proposal if it is likely enough. */
function fillDecision(element, row) {
  const decision = decisionOf(row);
  const best = proposalsOf(row).find(isSureEnough);
  const chip = element.querySelector(".chip");
  chip.textContent = decision ? ACTIONS[decision.action] : "";
  chip.dataset.action = decision?.action ?? "";
  element.dataset.action = decision?.action ?? "";
  const line = element.querySelector(".best");
  line.classList.toggle("chosen", decision?.caption !== undefined);
  if (decision?.caption !== undefined) line.textContent = decision.caption;
  else line.textContent = best ? best.caption : "";
}

function setMeter(element, share, isFlagged) {
  element.firstElementChild.style.width = Number.isNaN(share) ? "0" : `${Math.round(share * 100)}%`;
  element.classList.toggle("low", isFlagged);
}

function meterOf(share, isFlagged = false) {
  const meter = make("span", {class: "meter"}, make("i"));
  setMeter(meter, share, isFlagged);
  return meter;
}

function markSelected() {
  for (const [position, element] of shownRows) {
    element.setAttribute("aria-selected", String(position === cursor));
  }
  if (shownRows.has(cursor)) list.setAttribute("aria-activedescendant", `row-${cursor}`);
  else list.removeAttribute("aria-activedescendant");
}

/** Scroll as little as needed so that the selected row and its neighbours are in sight. */
function bringIntoView() {
  const margin = Math.min(rowHeight, Math.max(0, (list.clientHeight - rowHeight) / 2));
  const top = cursor * rowHeight - margin;
  const bottom = (cursor + 1) * rowHeight + margin - list.clientHeight;
  if (list.scrollTop > top) list.scrollTop = top;
  else if (list.scrollTop < bottom) list.scrollTop = bottom;
}

// A word of the list shows its heat map on the row's image while it is pointed at.
for (const [type, isOn] of [["pointerover", true], ["pointerout", false]]) {
  list.addEventListener(type, (event) => {
    const word = event.target.closest(".word");
    if (!word || (event.pointerType === "touch" && !isOn)) return;
    const row = word.closest(".row");
    paint(row.firstElementChild, view[Number(row.dataset.position)], isOn ? Number(word.dataset.word) : -1);
  });
}

list.addEventListener("scroll", () => {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    renderList(false);
  });
  clearTimeout(settleTimer);
  settleTimer = setTimeout(() => renderList(true), SETTLED);
}, {passive: true});
