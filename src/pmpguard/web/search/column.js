// The results of one index: a grid of cards and the light on them. The page has one, or two side by side.

import { make, percent, several } from "../shared/dom.js";
import { ServerError, explain, info, search, showImage } from "./api.js";
import { light, regionsAt, scaleOf, unlight } from "./regions.js";
import { bar } from "./svg.js";

const NOTHING = { version: "", fingerprint: "", count: 0, milliseconds: 0, hits: [] };
const MOST_LIT = 60; // images that a word is looked for in

export class Column {
  /** `base` is where its index is asked; handlers: `onOpen(column, place)`, `onMark(column, place|null)`. */
  constructor(section, base, handlers) {
    this.section = section;
    this.grid = section.querySelector(".grid");
    this.base = base;
    this.handlers = handlers;
    this.about = null; // what /info says
    this.answer = NOTHING;
    this.error = null;
    this.lighting = 0; // which wish to light a word is the latest
  }

  get hits() {
    return this.answer.hits;
  }

  placeOf(id) {
    return this.hits.findIndex((hit) => hit.id === id);
  }

  async loadInfo() {
    this.about = await info(this.base);
  }

  async ask(parameters, image, signal) {
    try {
      this.answer = await search(this.base, parameters, image, signal);
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.answer = NOTHING;
      this.error = error instanceof ServerError ? error : new ServerError(0, String(error), "");
    }
  }

  clear() {
    this.answer = NOTHING;
    this.error = null;
  }

  /** Show the hits; where another column stands beside, each says which place it has there. */
  show(kind, other) {
    this.grid.replaceChildren(...this.hits.map((hit, place) => this.#card(hit, place, other)));
    this.grid.className = kind === "caption" ? "grid captions" : "grid";
    const head = this.section.querySelector("header");
    head.hidden = other === null;
    if (other === null || this.about === null) return;
    const said = this.error === null
      ? `${several(this.hits.length, "result")} in ${Math.round(this.answer.milliseconds)} ms`
      : `${this.error.message}. ${this.error.fix}`;
    head.replaceChildren(
      make("h2", {}, this.about.name),
      make("p", { class: "quiet" }, this.about.model),
      make("p", { class: this.error === null ? "quiet" : "wrong", role: this.error === null ? "" : "alert" }, said),
    );
  }

  #card(hit, place, other) {
    const image = make("img", { alt: "", loading: "lazy", decoding: "async" });
    if (hit.image_id !== null) showImage(image, this.base, hit.image_id, 320);
    const away = hit.metadata?.distance_km;
    const elsewhere = other === null || other.error !== null ? null : other.placeOf(hit.id);
    const there = elsewhere === null ? "" : elsewhere < 0 ? "not in the other index's results" : `place ${elsewhere + 1} in the other index`;
    const button = make(
      "button",
      { type: "button", class: "card", "aria-label": [`Result ${place + 1}: ${hit.caption ?? hit.id}`, there].filter(Boolean).join(", ") },
      make("span", { class: "frame" }, image, make("canvas", { class: "heat", hidden: true })),
      make(
        "span",
        { class: "figures" },
        hit.probability === null ? null : bar(hit.probability),
        make("span", { title: "probability that it matches" }, hit.probability === null ? "" : percent(hit.probability)),
        elsewhere === null ? null : make("span", { class: elsewhere < 0 ? "there alone" : "there", title: there }, `⇄ ${elsewhere < 0 ? "–" : elsewhere + 1}`),
        away === undefined
          ? make("span", { class: "quiet score", title: "score: it orders the results and has no scale of its own" }, hit.score === null ? "" : hit.score.toFixed(2))
          : make("span", { class: "quiet score", title: "distance from the place that was asked for" }, `${away.toFixed(away < 10 ? 1 : 0)} km`),
      ),
      make("span", { class: "caption", dir: "auto" }, ...(hit.caption === null ? pathParts(hit.id) : [hit.caption])),
    );
    button.onclick = () => this.handlers.onOpen(this, place);
    button.onpointerenter = () => this.handlers.onMark(this, place);
    button.onpointerleave = () => this.handlers.onMark(this, null);
    button.onfocus = () => this.handlers.onMark(this, place);
    return make("li", { data: { place } }, button);
  }

  /** Mark one card, or none. */
  mark(place) {
    for (const item of this.grid.children) item.classList.toggle("marked", Number(item.dataset.place) === place);
  }

  /** Light a word of the text in all results, a few questions at a time, nearest to the top first; null ends it. */
  async light(word, text) {
    const wish = ++this.lighting;
    const cards = [...this.grid.querySelectorAll(".card")];
    const { fingerprint: version, hits } = this.answer;
    if (word === null) {
      for (const one of cards) unlight(one.querySelector("canvas"));
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 90)); // a pointer that passes by asks nothing
    const waiting = hits.map((hit, place) => [hit, cards[place]]).slice(0, MOST_LIT);
    const work = async () => {
      while (waiting.length > 0 && wish === this.lighting) {
        const [hit, one] = waiting.shift();
        try {
          const explanation = await explain(this.base, version, hit.image_id, text);
          const regions = regionsAt(explanation, word.start, word.stop);
          if (wish === this.lighting && regions !== null) light(one.querySelector("canvas"), one.querySelector("img"), regions, scaleOf(explanation));
        } catch (error) {
          if (wish === this.lighting && error.status !== 404) return;
        }
      }
    };
    await Promise.all([work(), work(), work()]);
  }
}

/** A path that a narrow card breaks behind its slashes rather than inside a name. */
function pathParts(id) {
  return id.split("/").flatMap((part, place) => (place === 0 ? [part] : ["/", make("wbr"), part]));
}
