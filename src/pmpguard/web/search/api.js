// Questions to the server. A token, where one is needed, comes once with the address (#token=...) and is kept
// for this tab only.

import { byId } from "../shared/dom.js";

const KEY = "pmpguard-token";
const explanations = new Map();
const blobs = new Map();

export class ServerError extends Error {
  constructor(status, message, fix) {
    super(message);
    this.status = status;
    this.fix = fix;
  }
}

export function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

function askForToken() {
  const dialog = byId("token");
  if (!dialog.open) dialog.showModal();
  byId("token-form").onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, byId("token-text").value.trim());
    location.reload();
  };
}

async function request(address, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  let response;
  try {
    response = await fetch(address, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer", "Check that it is running, then search again.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) askForToken();
  throw new ServerError(response.status, answer.error ?? `Error ${response.status}`, answer.fix ?? "");
}

// `base` is "" for the index that is served, "/beside" for the one beside it.

export const info = async (base) => (await request(`${base}/info`)).json();

/** `parameters` are those of GET /search; an image makes it a form with the same names. */
async function ask(base, parameters, image, signal) {
  if (image === null) return request(`${base}/search?${parameters}`, { signal });
  const form = new FormData();
  for (const [name, value] of parameters) form.append(name, value);
  form.append("image", image);
  return request(`${base}/search`, { method: "POST", body: form, signal });
}

export const search = async (...query) => (await ask(...query)).json();

/** The results of the same search as a file: geojson, csv or geoparquet. */
export async function searchFile(base, parameters, image, format) {
  const asked = new URLSearchParams(parameters);
  asked.set("format", format);
  return (await ask(base, asked, image)).blob();
}

/** Word by word, where the text is found in an image; asked once and remembered while the index stays. */
export function explain(base, version, id, text) {
  const key = JSON.stringify([base, version, id, text]);
  if (!explanations.has(key)) {
    if (explanations.size > 500) explanations.clear();
    const answer = request(`${base}/explain?${new URLSearchParams({ id, text })}`).then((response) => response.json());
    answer.catch(() => explanations.delete(key));
    explanations.set(key, answer);
  }
  return explanations.get(key);
}

/** Show an image of the index in an <img>; with a token it is fetched, for <img> sends no headers. */
export async function showImage(image, base, id, size) {
  const address = `${base}/images/${encodeURIComponent(id)}?size=${size}`;
  image.onerror = () => image.classList.add("missing");
  if (sessionStorage.getItem(KEY) === null) {
    image.src = address;
    return;
  }
  if (!blobs.has(address)) {
    if (blobs.size > 300) {
      for (const old of blobs.values()) old.then(URL.revokeObjectURL, () => {});
      blobs.clear();
    }
    blobs.set(address, request(address).then((response) => response.blob()).then(URL.createObjectURL));
  }
  try {
    image.src = await blobs.get(address);
  } catch {
    blobs.delete(address);
    image.classList.add("missing");
  }
}
