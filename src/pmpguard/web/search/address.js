// The query lives in the address of the page, under the names GET /search uses, so that it can be shared.

const SINGLE = ["text", "like", "kind", "k", "text_weight", "box", "near", "radius", "start", "stop"];

const SHOWN = ["hit", "from", "compare"]; // what is open, of which index, and whether both are shown

/** @returns {{text: string, like: string, where: string[], hit: string, image: File|null}} and more */
export function emptyQuery() {
  return { ...Object.fromEntries([...SINGLE, ...SHOWN].map((name) => [name, ""])), where: [], image: null };
}

export function readAddress(written = location.search) {
  const parameters = new URLSearchParams(written);
  const query = emptyQuery();
  for (const name of [...SINGLE, ...SHOWN]) query[name] = parameters.get(name) ?? "";
  query.where = parameters.getAll("where");
  return query;
}

/** The parameters of a query; those that are empty or as usual are left out. */
export function parametersOf(query) {
  const parameters = new URLSearchParams();
  for (const name of SINGLE) {
    const usual = (name === "kind" && query.kind === "image") || (name === "k" && query.k === "20");
    if (query[name] !== "" && !usual) parameters.set(name, query[name]);
  }
  for (const condition of query.where) parameters.append("where", condition);
  return parameters;
}

export function addressOf(query) {
  const parameters = parametersOf(query);
  for (const name of SHOWN) if (query[name] !== "") parameters.set(name, query[name]);
  const written = parameters.toString();
  return written ? `/?${written}` : "/";
}

export const isEmpty = (query) => query.text === "" && query.like === "" && query.image === null && query.near === "";

export const filterCount = (query) =>
  query.where.length + (query.box !== "") + (query.near !== "") + (query.start !== "" || query.stop !== "") + (query.kind === "caption");
