// The filter form, made from the columns the index can be filtered by: words to tick, ranges of numbers and times.

import { byId, make } from "../shared/dom.js";

const MOST_PILLS = 12;
const CONDITION = /^\s*([^=<>]*[^=<>\s])\s*(<=|>=|=|<|>)\s*([^]*)$/;
const NOTHING = { kind: "", k: "", where: [], box: "", near: "", radius: "", start: "", stop: "" };
const PLACE = /^\s*-?\d+(\.\d+)?(\s*,\s*-?\d+(\.\d+)?){1,3}\s*$/;

/**
 * Build the form from what /info says and fill it from `query`; `onApply(changes)` gets the fields to change.
 * Areas and times are offered where the index has any, or the address asks for one.
 */
export function showFilters({ columns, captions, limits, ranges, has_places, has_times }, query, onApply) {
  const form = byId("filters");
  const shown = Object.entries(columns).filter(([, values]) => values.length !== 1);
  const kind = select("kind", [["image", "images"], ["caption", "captions"]], query.kind || "image");
  const k = select("k", [10, 20, 50, 100, 200].filter((count) => count <= limits.hits).map((count) => [String(count), String(count)]), query.k || "20");
  const box = query.box === "" ? ["", "", "", ""] : query.box.split(",");
  const degrees = ["west", "south", "east", "north"].map((name, place) => {
    const limit = place % 2 ? 90 : 180;
    return make("input", { type: "number", name, step: "any", min: -limit, max: limit, placeholder: name, value: box[place] ?? "", "aria-label": `${name}, degrees` });
  });
  const near = make("input", { type: "text", name: "near", value: query.near, placeholder: "longitude, latitude", title: "a point, or west, south, east, north", "aria-label": "near, longitude and latitude in degrees" });
  const radius = make("input", { type: "number", name: "radius", step: "any", min: 0, value: query.radius, placeholder: "km", "aria-label": "kilometres around it" });
  const times = ["start", "stop"].map((name) =>
    make("input", { type: "date", name, value: query[name].slice(0, 10), "aria-label": name === "start" ? "from" : "until" }),
  );
  const conditions = query.where.map((text) => CONDITION.exec(text)).filter((found) => found !== null).map(([text, column, sign, value]) => ({ text, column, sign, value }));
  const spans = Object.entries(ranges).map(([name, range]) => rangeOf(name, range, conditions));
  const offered = new Set(shown.map(([name]) => name));
  const rest = conditions.filter((one) => !one.isShown && !(one.sign === "=" && offered.has(one.column))).map((one) => one.text);
  const others = make("input", { type: "text", name: "others", value: rest.join(", "), "aria-label": "other conditions, with commas between them" });
  form.replaceChildren(
    captions > 0 ? group("Find", kind) : "",
    group("Results", k),
    ...shown.map(([name, values]) => group(name, ...choices(name, values, query.where))),
    ...spans.map(({ name, inputs }) => group(name, between(inputs))),
    rest.length > 0 ? group("Other conditions", others) : "",
    has_places || query.box !== "" ? group("Area, degrees", make("div", { class: "degrees" }, ...degrees)) : "",
    has_places || query.near !== "" ? group("Near, kilometres", make("div", { class: "between" }, near, make("span", {}, "within"), radius)) : "",
    has_times || query.start + query.stop !== "" ? group("Time", between(times)) : "",
    make(
      "div",
      { class: "buttons" },
      make("button", { type: "submit", class: "primary" }, "Apply"),
      make("button", { type: "button", id: "filters-clear", onclick: () => onApply(NOTHING) }, "Clear"),
    ),
  );
  form.oninput = () => [...form.elements].forEach((input) => input.setCustomValidity(""));
  form.onsubmit = (event) => {
    event.preventDefault();
    const given = degrees.filter((input) => input.value !== "");
    const reversed = [...spans.map((span) => span.inputs), times].find(([least, greatest]) => isReversed(least, greatest));
    if (given.length > 0 && given.length < 4) return complain(degrees.find((input) => input.value === ""), "An area needs all four sides");
    const place = near.value.trim();
    const isAlone = query.text === "" && query.like === "" && query.image === null;
    if (place !== "" && !PLACE.test(place)) return complain(near, "Write longitude, latitude in degrees, such as 7.45, 46.95");
    if (place === "" && radius.value !== "") return complain(near, "Kilometres around which place?");
    if (place !== "" && radius.value === "" && !isAlone) return complain(radius, "Within how many kilometres?");
    if (reversed !== undefined) return complain(reversed[1], "The end comes before the beginning");
    onApply({
      kind: kind.value,
      k: k.value,
      where: [...[...form.querySelectorAll("[data-column]")].flatMap(chosen), ...spans.flatMap(limitsOf), ...written(others)],
      box: given.length === 4 ? degrees.map((input) => input.value).join(",") : "",
      near: place,
      radius: radius.value,
      start: times[0].value,
      stop: times[1].value,
    });
  };
}

function complain(input, message) {
  input.setCustomValidity(message);
  input.reportValidity();
}

const isReversed = (least, greatest) =>
  least.value !== "" && greatest.value !== "" && (least.type === "date" ? least.value > greatest.value : Number(least.value) > Number(greatest.value));

/** Two fields for the limits of a column; the conditions they show are marked. */
function rangeOf(name, { kind, least, greatest }, conditions) {
  const isTime = kind === "time";
  const ends = isTime ? [least.slice(0, 10), greatest.slice(0, 10)] : [least, greatest].map((end) => String(Number(end.toPrecision(6))));
  const inputs = ends.map((end, place) => {
    const met = conditions.filter((one) => one.column === name && (one.sign === "=" || one.sign === [">=", "<="][place]) && isShowable(one.value, isTime));
    for (const one of met) one.isShown = one.sign !== "=" || conditions.filter((other) => other.column === name).length === 1;
    const value = met.find((one) => one.isShown)?.value ?? "";
    const label = `${name} ${place ? "to" : "from"}`;
    return isTime
      ? make("input", { type: "date", name: label, value, title: `${ends[0]} to ${ends[1]}`, "aria-label": label })
      : make("input", { type: "number", name: label, step: "any", placeholder: end, value, title: `${ends[0]} to ${ends[1]}`, "aria-label": label });
  });
  return { name, inputs };
}

/** Whether a field of its kind can show a value as it is. */
const isShowable = (value, isTime) => (isTime ? /^\d{4}-\d{2}-\d{2}$/.test(value) : value.trim() !== "" && Number.isFinite(Number(value)));

const limitsOf = ({ name, inputs: [least, greatest] }) =>
  [[">=", least], ["<=", greatest]].filter(([, input]) => input.value !== "").map(([sign, input]) => `${name}${sign}${input.value}`);

const between = ([first, last]) => make("div", { class: "between" }, first, make("span", {}, "to"), last);

function group(title, ...children) {
  return make("fieldset", {}, make("legend", {}, title), ...children);
}

function select(name, options, value) {
  const list = make("select", { name, "aria-label": name });
  list.append(...options.map(([option, text]) => make("option", { value: option }, text)));
  list.value = value;
  return list;
}

/** Few values are shown as pills to tick, many as a list to tick several of, very many are written. */
function choices(column, values, where) {
  const isChosen = (value) => where.includes(`${column}=${value}`);
  if (values.length === 0) {
    const given = where.find((condition) => condition.startsWith(`${column}=`)) ?? "";
    return [make("input", { type: "text", value: given.slice(column.length + 1), data: { column }, "aria-label": column })];
  }
  const boxOf = (value) => make("input", { type: "checkbox", value, checked: isChosen(value), data: { column } });
  if (values.length <= MOST_PILLS) return values.map((value) => make("label", { class: "pill" }, boxOf(value), value));
  const labels = values.map((value) => make("label", {}, boxOf(value), make("span", { dir: "auto" }, value)));
  const chosenFirst = [...labels.filter((label) => label.firstChild.checked), ...labels.filter((label) => !label.firstChild.checked)];
  const narrow = make("input", { type: "search", placeholder: `find among ${values.length}`, "aria-label": `find in ${column}` });
  narrow.oninput = () => {
    const wanted = narrow.value.trim().toLowerCase();
    for (const label of labels) label.hidden = !label.textContent.toLowerCase().includes(wanted) && !label.firstChild.checked;
  };
  narrow.onkeydown = (event) => event.key === "Enter" && event.preventDefault();
  return [make("div", { class: "ticks" }, narrow, make("div", { class: "list", role: "group", "aria-label": column }, ...chosenFirst))];
}

/** Conditions such as "cloud_cover<20, valid>=0.5". */
function written(control) {
  return control.value.split(",").map((condition) => condition.trim()).filter((condition) => condition !== "");
}

function chosen(control) {
  let values = [control.value.trim()].filter((value) => value !== "");
  if (control.type === "checkbox") values = control.checked ? [control.value] : [];
  return values.map((value) => `${control.dataset.column}=${value}`);
}
