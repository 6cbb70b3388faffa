"""The page of flagged pairs: each image with the caption it came with and the one proposed for it.

One HTML file that opens anywhere: style and images are inside, nothing is fetched, nothing runs. Captions
come from other people's data, so they enter the page as text, never as markup, and the page's own policy
forbids scripts and addresses besides.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from pmpguard.errors import DataError
from pmpguard.files import write_atomic

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
IMAGE_SIDE = 368  # pixels kept at most: twice what is shown, for dense screens
PUNCTUATION = frozenset(".,;:!?")


@dataclass(frozen=True)
class MarkedWord:
    """One word and its evidence; marked ones are red in a wrong caption and green in a proposed one."""

    text: str
    evidence: float
    marked: bool


@dataclass(frozen=True)
class CaughtPair:
    """A pair that was flagged, and what was proposed instead; an empty proposal means there was none.

    `truly_wrong` and `proposal_right` are set only where the truth is known, as in the synthetic scenes.
    """

    pair_id: str
    image: Image.Image
    caption: tuple[MarkedWord, ...]
    p_match: float
    proposal: tuple[MarkedWord, ...]
    proposal_probability: float
    label: str | None
    truly_wrong: bool | None
    proposal_right: bool | None


@dataclass(frozen=True)
class PageSummary:
    """The page's title and its figures, such as ("estimated mismatch rate", "0.41")."""

    title: str
    lines: tuple[tuple[str, str], ...]


def write_caught_page(
    path: Path, summary: PageSummary, pairs: Sequence[CaughtPair], plot_png: bytes | None = None
) -> None:
    """Write the page to `path` in one step; `plot_png` is shown beside the summary."""
    page = _page(summary, pairs, plot_png)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page)


def _page(summary: PageSummary, pairs: Sequence[CaughtPair], plot_png: bytes | None) -> str:
    title = escape(summary.title)
    cards = "\n".join(_card(pair) for pair in pairs)
    body = f'{_legend(pairs)}\n<div class="cards">\n{cards}\n</div>' if pairs else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{_overview(summary, plot_png)}
<h2>{_count(pairs)}</h2>
{body}
</main>
</body>
</html>
"""


def _overview(summary: PageSummary, plot_png: bytes | None) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in summary.lines
    )
    numbers = f'<dl class="numbers">{rows}</dl>' if rows else ""
    plot = (
        f'<img class="plot" alt="Plot of the results" src="{_data_uri(plot_png, "png")}">' if plot_png else ""
    )
    return f'<section class="overview">{numbers}{plot}</section>' if numbers or plot else ""


def _count(pairs: Sequence[CaughtPair]) -> str:
    """The heading over the cards; what is known of the truth is counted in it."""
    if not pairs:
        return "No pair was flagged: every caption seems to fit its image"
    parts = [f"{len(pairs):,} flagged pair{'s' if len(pairs) > 1 else ''}"]
    wrong = [pair.truly_wrong for pair in pairs if pair.truly_wrong is not None]
    right = [pair.proposal_right for pair in pairs if pair.proposal_right is not None]
    if wrong:
        parts.append(f"{sum(wrong):,} of {len(wrong):,} truly wrong")
    if right:
        parts.append(f"{sum(right):,} of {len(right):,} proposals right")
    return parts[0] + "".join(f"<small>{part}</small>" for part in parts[1:])


def _legend(pairs: Sequence[CaughtPair]) -> str:
    """What the marks mean; the signs of the truth only where one is shown."""
    entries = [
        "<del>word</del> not found in the image",
        "<ins>word</ins> proposed, found in the image",
        f"{_bar(0.6)} p(match): the probability that both belong together",
    ]
    if any(truth is not None for pair in pairs for truth in (pair.truly_wrong, pair.proposal_right)):
        entries.append(f"{_truth(True, '')}{_truth(False, '')}checked against the truth")
    entries.append("point at a word to see its evidence")
    return f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in entries)}</ul>'


def _card(pair: CaughtPair) -> str:
    """One pair: image, name, the caption it came with, the proposed one."""
    label = f"<b>{escape(pair.label)}</b> " if pair.label is not None else ""
    p_match = _probability(pair.pair_id, "p_match", pair.p_match)
    flagged = _verdict(pair.truly_wrong, "truly wrong", "false alarm")
    given = _caption("Came with", "del", pair.caption, p_match, flagged)
    proposal = '<p class="none">no proposal</p>'
    if pair.proposal:
        p_proposal = _probability(pair.pair_id, "proposal_probability", pair.proposal_probability)
        right = _verdict(pair.proposal_right, "right", "not right")
        proposal = _caption("Proposed", "ins", pair.proposal, p_proposal, right)
    return f"""<article>
{_image(pair)}
<header>{label}<code>{escape(pair.pair_id)}</code></header>
<div class="captions">
{given}
{proposal}
</div>
</article>"""


def _image(pair: CaughtPair) -> str:
    """The image inside the page, reduced where it is larger than can be seen."""
    image = pair.image.convert("RGB")
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=90, subsampling=0)
    return f'<img alt="Image of {escape(pair.pair_id)}" src="{_data_uri(encoded.getvalue(), "jpeg")}">'


def _caption(heading: str, tag: str, words: tuple[MarkedWord, ...], probability: float, verdict: str) -> str:
    """A caption under its heading; `tag` marks its words: `del` is red, `ins` is green."""
    return (
        f'<section class="{tag}"><h3>{heading}{verdict}'
        f'<span class="match" title="p(match)">{_bar(probability)}{_shown(probability)}</span></h3>'
        f'<p dir="auto">{_words(words, tag)}</p></section>'
    )


def _words(words: tuple[MarkedWord, ...], tag: str) -> str:
    """The caption as text, every word with its evidence, marked words inside `tag`."""
    pieces = []
    for number, word in enumerate(words):
        space = " " if number and not set(word.text) <= PUNCTUATION else ""
        name = tag if word.marked else "span"
        pieces.append(f'{space}<{name} title="evidence {word.evidence:+.3f}">{escape(word.text)}</{name}>')
    return "".join(pieces)


def _probability(pair_id: str, field: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise DataError(f"pair {pair_id}: {field} is {value}", fix="a probability lies between 0 and 1")
    return value


def _shown(probability: float) -> str:
    """Two digits that never claim certainty (as HTML).

    >>> _shown(0.413), _shown(0.001), _shown(0.999)
    ('0.41', '&lt;0.01', '&gt;0.99')
    """
    if probability < 0.01:
        return "&lt;0.01"
    return "&gt;0.99" if probability > 0.99 else f"{probability:.2f}"


def _bar(probability: float) -> str:
    """A bar of `probability`; a sliver stays visible at 0."""
    width = max(3, round(100 * probability))
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="10"/>'
        f'<rect class="level" width="{width}" height="10"/></svg>'
    )


def _verdict(truth: bool | None, yes: str, no: str) -> str:
    if truth is None:
        return ""
    return _truth(truth, yes if truth else no)


def _truth(good: bool, text: str) -> str:
    return f'<span class="truth {"good" if good else "bad"}">{"✓" if good else "✗"} {text}</span>'


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


# Red is struck through and green underlined, so that the marks are told apart without their colours too.
STYLE = """
:root {
  --paper: #f6f7f9; --card: #fff; --ink: #1b2028; --quiet: #5f6876; --line: #e1e5ea;
  --red: #b3201b; --red-tint: #fde7e5; --green: #116b34; --green-tint: #dcf3e3;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1318; --card: #181d24; --ink: #e6eaf0; --quiet: #98a2b1; --line: #2a313b;
    --red: #ff9d94; --red-tint: #451d1c; --green: #7fdb9e; --green-tint: #143822;
  }
  .plot { filter: invert(.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; margin: 0; padding: 0; }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: clamp(1rem, 4vw, 2.5rem); overflow-wrap: anywhere; }
h1 { font-size: clamp(1.4rem, 4vw, 1.9rem); line-height: 1.2; letter-spacing: -.015em; }
h2 { display: flex; flex-wrap: wrap; gap: 0 1.1rem; align-items: baseline; margin-top: 2.25rem;
  font-size: 1.15rem; }
h2 small { font-size: .875rem; font-weight: 400; color: var(--quiet); }
.overview { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: center; margin-top: 1.25rem; }
.numbers { flex: 1 1 20rem; display: grid; column-gap: 2.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.numbers div { display: flex; justify-content: space-between; gap: 1rem; padding: .4rem 0;
  border-bottom: 1px solid var(--line); }
dt { color: var(--quiet); }
dd { font-weight: 600; font-variant-numeric: tabular-nums; text-align: right; }
.plot { flex: 0 1 30rem; min-width: min(100%, 18rem); max-width: 100%; background: #fff; padding: .5rem;
  border-radius: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.75rem; margin: .5rem 0 1.25rem; list-style: none;
  font-size: .875rem; color: var(--quiet); }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
article { display: grid; grid-template: "image name" auto "image captions" 1fr / 184px 1fr;
  gap: .5rem 1.1rem; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 14px; break-inside: avoid; }
article img { grid-area: image; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 8px;
  background: var(--paper); }
header { grid-area: name; display: flex; flex-wrap: wrap; gap: 0 .75rem; align-items: baseline;
  justify-content: space-between; }
code { font: .75rem ui-monospace, monospace; color: var(--quiet); }
.captions { grid-area: captions; display: grid; gap: .75rem; align-content: start; }
h3 { display: flex; flex-wrap: wrap; gap: 0 .6rem; align-items: center; font-size: .8rem; font-weight: 400;
  margin-bottom: .15rem; color: var(--quiet); }
.match { display: flex; align-items: center; justify-content: space-between; width: 6.4rem; margin-left: auto;
  font-variant-numeric: tabular-nums; }
svg { width: 56px; height: 6px; border-radius: 3px; vertical-align: middle; }
.track { fill: var(--line); }
.level { fill: var(--quiet); }
.del .level { fill: var(--red); }
.ins .level { fill: var(--green); }
.truth { margin-right: .3em; }
.good { color: var(--green); }
.bad { color: var(--red); }
.none { color: var(--quiet); font-style: italic; }
del, ins { margin: 0 -.12em; padding: 0 .12em; border-radius: 4px; text-decoration-thickness: 1px; }
del { color: var(--red); background: var(--red-tint); text-decoration-line: line-through; }
ins { color: var(--green); background: var(--green-tint); text-decoration-line: underline;
  text-underline-offset: 3px; }
.legend > li > * { margin: 0 .15em 0 0; }
@media (max-width: 34rem) {
  article { grid-template: "image name" auto "captions captions" auto / 112px 1fr; }
  header { flex-direction: column; justify-content: center; }
}
@media print {
  body { background: none; }
  del, ins, rect { print-color-adjust: exact; }
}
"""
