// The filter form, made from the columns the index can be filtered by.

import { byId, make } from "../shared/dom.js";

const MOST_PILLS = 12;

/**
 * Build the form from what /info says and fill it from `query`; `onApply(changes)` gets the fields to change.
 * Areas and times are offered where the index has any, or the address asks for one.
 */
export function showFilters({ columns, captions, limits, numbers, has_places, has_times }, query, onApply) {
  const form = byId("filters");
  const shown = Object.entries(columns).filter(([, values]) => values.length !== 1);
  const kind = select("kind", [["image", "images"], ["caption", "captions"]], query.kind || "image");
  const k = select("k", [10, 20, 50, 100, 200].filter((count) => count <= limits.hits).map((count) => [String(count), String(count)]), query.k || "20");
  const box = query.box === "" ? ["", "", "", ""] : query.box.split(",");
  const degrees = ["west", "south", "east", "north"].map((name, place) => {
    const limit = place % 2 ? 90 : 180;
    return make("input", { type: "number", name, step: "any", min: -limit, max: limit, placeholder: name, value: box[place] ?? "", "aria-label": `${name}, degrees` });
  });
  const times = ["start", "stop"].map((name) =>
    make("input", { type: "date", name, value: query[name].slice(0, 10), "aria-label": name === "start" ? "from" : "until" }),
  );
  const compared = query.where.filter((condition) => /^[^=<>]+[<>]/.test(condition));
  const comparisons = make("input", { type: "text", name: "comparisons", value: compared.join(", "), placeholder: `${numbers[0]} >= 0.5`, title: `Of ${numbers.join(", ")}`, "aria-label": "conditions on numbers" });
  form.replaceChildren(
    captions > 0 ? group("Find", kind) : "",
    group("Results", k),
    ...shown.map(([name, values]) => group(name, ...choices(name, values, query.where))),
    numbers.length > 0 || compared.length > 0 ? group("Numbers", comparisons) : "",
    has_places || query.box !== "" ? group("Area, degrees", make("div", { class: "degrees" }, ...degrees)) : "",
    has_times || query.start + query.stop !== "" ? group("Time", make("div", { class: "times" }, times[0], make("span", {}, "to"), times[1])) : "",
    make(
      "div",
      { class: "buttons" },
      make("button", { type: "submit", class: "primary" }, "Apply"),
      make("button", { type: "button", id: "filters-clear", onclick: () => onApply({ kind: "", k: "", where: [], box: "", start: "", stop: "" }) }, "Clear"),
    ),
  );
  for (const input of degrees) input.oninput = () => input.setCustomValidity("");
  form.onsubmit = (event) => {
    event.preventDefault();
    const given = degrees.filter((input) => input.value !== "");
    if (given.length > 0 && given.length < 4) {
      const missing = degrees.find((input) => input.value === "");
      missing.setCustomValidity("An area needs all four sides");
      missing.reportValidity();
      return;
    }
    onApply({
      kind: kind.value,
      k: k.value,
      where: [...[...form.querySelectorAll("[data-column]")].flatMap(chosen), ...written(comparisons)],
      box: given.length === 4 ? degrees.map((input) => input.value).join(",") : "",
      start: times[0].value,
      stop: times[1].value,
    });
  };
}

function group(title, ...children) {
  return make("fieldset", {}, make("legend", {}, title), ...children);
}

function select(name, options, value) {
  const list = make("select", { name, "aria-label": name });
  list.append(...options.map(([option, text]) => make("option", { value: option }, text)));
  list.value = value;
  return list;
}

/** Few values are shown as pills to tick, many as a list to choose several from, very many are written. */
function choices(column, values, where) {
  const isChosen = (value) => where.includes(`${column}=${value}`);
  if (values.length === 0) {
    const given = where.find((condition) => condition.startsWith(`${column}=`)) ?? "";
    return [make("input", { type: "text", value: given.slice(column.length + 1), data: { column }, "aria-label": column })];
  }
  if (values.length <= MOST_PILLS) {
    return values.map((value) =>
      make("label", { class: "pill" }, make("input", { type: "checkbox", value, checked: isChosen(value), data: { column } }), value),
    );
  }
  const list = make("select", { multiple: true, size: 4, data: { column }, "aria-label": column });
  list.append(...values.map((value) => make("option", { value, selected: isChosen(value) }, value)));
  return [list];
}

/** Conditions such as "cloud_cover<20, valid>=0.5". */
function written(control) {
  return control.value.split(",").map((condition) => condition.trim()).filter((condition) => condition !== "");
}

function chosen(control) {
  let values = [control.value.trim()].filter((value) => value !== "");
  if (control.type === "checkbox") values = control.checked ? [control.value] : [];
  if (control.tagName === "SELECT") values = [...control.selectedOptions].map((option) => option.value);
  return values.map((value) => `${control.dataset.column}=${value}`);
}
