(() => {
  const board = document.getElementById("board");
  const form = board.querySelector("form");
  const body = board.querySelector("tbody");
  const rows = [...body.rows];
  const runs = JSON.parse(document.getElementById("leaderboard-runs").textContent);
  const selects = [...form.elements];
  const heads = [...board.querySelectorAll("th[data-key]")];
  let order = { key: "mr", down: true };
  const make = (tag, text = "") => Object.assign(document.createElement(tag), { textContent: text });
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const select of selects) {
      const usual = [...select.options].find((option) => "usual" in option.dataset)?.value ?? "";
      select.value = asked.get(select.name) ?? usual;
      if (select.selectedIndex < 0) select.value = "";
    }
    order = { key: asked.get("sort") ?? "mr", down: asked.get("down") !== "no" };
    if (!heads.some((head) => head.dataset.key === order.key)) order.key = "mr";
  }
  function write() {
    const said = new URLSearchParams(selects.map((select) => [select.name, select.value]));
    said.set("sort", order.key);
    if (!order.down) said.set("down", "no");
    history.replaceState(null, "", `#${said}`);
  }
  function compare(one, other) {
    const [left, right] = [one.dataset[order.key], other.dataset[order.key]];
    if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
    const ahead = order.key === "method" ? left.localeCompare(right) : left - right;
    return order.down ? -ahead : ahead;
  }
  function show() {
    for (const open of body.querySelectorAll("tr.detail")) close(open.previousElementSibling);
    const shown = rows.filter((row) => selects.every((select) => !select.value || row.dataset[select.name] === select.value));
    for (const row of rows) row.hidden = !shown.includes(row);
    body.append(...shown.sort(compare));
    for (const head of heads) {
      if (head.dataset.key === order.key) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    for (const select of selects) {
      const column = form.querySelectorAll("select");
      const place = [...column].indexOf(select);
      for (const row of board.querySelectorAll("thead tr, tbody tr:not(.detail)"))
        row.querySelectorAll(".place")[place].hidden = Boolean(select.value);
    }
    const few = shown.length === 1 ? "1 line" : `${shown.length} lines`;
    document.getElementById("leaderboard-count").textContent = `${few} of ${rows.length}. ¹ one seed.`;
  }
  function close(row) {
    row.nextElementSibling.remove();
    row.querySelector("button").setAttribute("aria-expanded", "false");
  }
  function open(row) {
    const told = runs[row.dataset.entry];
    const cell = make("td");
    cell.colSpan = row.cells.length;
    cell.append(make("p", `mR, seed by seed: ${told.against}.`));
    for (const run of told.runs) {
      const list = make("dl");
      for (const [name, value] of Object.entries(run)) list.append(make("dt", name), make("dd", value));
      cell.append(list);
    }
    cell.append(make("p", `What decided these runs (${told.known}):`), make("pre", JSON.stringify(told.settings, null, 1)));
    const detail = make("tr");
    detail.className = "detail";
    detail.append(cell);
    row.after(detail);
    row.querySelector("button").setAttribute("aria-expanded", "true");
  }
  form.addEventListener("input", () => { show(); write(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  board.querySelector("thead").addEventListener("click", (event) => {
    const key = event.target.closest("th[data-key]")?.dataset.key;
    if (!key) return;
    order = { key, down: order.key === key ? !order.down : key !== "method" };
    show();
    write();
  });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("button")?.closest("tr");
    if (!row) return;
    if (row.nextElementSibling?.className === "detail") close(row);
    else open(row);
  });
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.tagName !== "BUTTON") return;
    const buttons = [...body.querySelectorAll("tr:not([hidden]) button")];
    buttons[buttons.indexOf(event.target) + step]?.focus();
    event.preventDefault();
  });
  addEventListener("hashchange", () => { read(); show(); });
  read();
  show();
})();
