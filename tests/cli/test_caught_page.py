"""The page of flagged pairs, read back with an HTML parser."""

import base64
import io
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from pmpguard.cli.caught_page import CaughtPair, MarkedWord, PageSummary, write_caught_page
from pmpguard.errors import DataError

SUMMARY = PageSummary("Caught pairs", (("estimated mismatch rate", "0.41"), ("detection AUROC", "0.97")))
VOID = {"meta", "img", "rect"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</p></article><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' style='color:red",
    "&lt;b&gt;",
    "<!--",
    "]]>",
    "{title}",
)


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list["Element | str"] = field(default_factory=list)

    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def all(self, tag: str, **attributes: str) -> list["Element"]:
        """Every element below this one with the tag and the attributes (`class_` for class)."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child.tag == tag and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.all(tag, **attributes)
        return found


class Reader(HTMLParser):
    """Builds the tree and insists that every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attributes):
        element = Element(tag, dict(attributes))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop().tag == tag

    def handle_data(self, text):
        self.open[-1].children.append(text)

    def handle_comment(self, text):
        raise AssertionError(f"a comment: {text}")


def read(path) -> Element:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def words(text: str, marked: str = "") -> tuple[MarkedWord, ...]:
    return tuple(MarkedWord(word, -0.25, word in marked.split()) for word in text.split())


def pair(**changes) -> CaughtPair:
    plain = CaughtPair(
        pair_id="scene-1",
        image=Image.new("RGB", (16, 16), (200, 30, 30)),
        caption=words("a pond , with two cars .", "pond cars"),
        p_match=0.04,
        proposal=words("a large airport .", "airport"),
        proposal_probability=0.91,
        label="airport",
        truly_wrong=None,
        proposal_right=None,
    )
    return replace(plain, **changes)


def write(tmp_path, *pairs, summary=SUMMARY, plot_png=None) -> Element:
    write_caught_page(tmp_path / "page.html", summary, pairs, plot_png)
    return read(tmp_path / "page.html")


def tags(element: Element) -> list[str]:
    return [
        tag for child in element.children if isinstance(child, Element) for tag in [child.tag, *tags(child)]
    ]


def image_of(element: Element) -> Image.Image:
    kind, content = element.attributes["src"].split(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(content, validate=True)))
    assert kind == f"data:image/{image.format.lower()}"
    return image


def test_a_card_shows_image_name_both_captions_and_their_probabilities(tmp_path):
    page = write(tmp_path, pair(), pair(pair_id="scene-2", label=None))
    first, second = page.all("article")
    assert first.all("header")[0].text() == "airport scene-1" and second.all("header")[0].text() == "scene-2"
    given, proposed = first.all("section")
    assert given.all("p")[0].text() == "a pond, with two cars."
    assert proposed.all("p")[0].text() == "a large airport."
    assert [one.text() for one in given.all("del")] == ["pond", "cars"]
    assert [one.text() for one in proposed.all("ins")] == ["airport"]
    assert not given.all("ins") and not proposed.all("del")
    assert given.all("h3")[0].text() == "Came with0.04" and proposed.all("h3")[0].text() == "Proposed0.91"
    levels = [section.all("rect", class_="level")[0].attributes["width"] for section in (given, proposed)]
    assert levels == ["4", "91"]
    assert {word.attributes["title"] for word in given.all("p")[0].all("span")} == {"evidence -0.250"}


def test_summary_and_legend_stand_above_the_cards(tmp_path):
    page = write(tmp_path, pair())
    assert page.all("title")[0].text() == page.all("h1")[0].text() == "Caught pairs"
    rows = [(row.all("dt")[0].text(), row.all("dd")[0].text()) for row in page.all("dl")[0].all("div")]
    assert tuple(rows) == SUMMARY.lines
    legend = page.all("ul", class_="legend")[0]
    assert legend.all("del") and legend.all("ins") and "p(match)" in legend.text()
    order = tags(page.all("main")[0])
    assert order.index("h1") < order.index("dl") < order.index("ul") < order.index("article")


def test_the_truth_is_told_only_where_it_is_known(tmp_path):
    unknown = write(tmp_path, pair())
    assert not unknown.all("span", class_="truth good") and "truth" not in unknown.all("main")[0].text()
    assert unknown.all("h2")[0].text() == "1 flagged pair"
    known = write(
        tmp_path,
        pair(truly_wrong=True, proposal_right=True),
        pair(truly_wrong=False, proposal_right=False),
        pair(truly_wrong=True, proposal=()),
    )
    assert known.all("h2")[0].text() == "3 flagged pairs2 of 3 truly wrong1 of 2 proposals right"
    good, bad, last = known.all("article")
    assert [one.text() for one in good.all("span", class_="truth good")] == ["✓ truly wrong", "✓ right"]
    assert [one.text() for one in bad.all("span", class_="truth bad")] == ["✗ false alarm", "✗ not right"]
    assert len(last.all("section")) == 1 and "no proposal" in last.text()


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_stays_text(tmp_path, text):
    def page_of(text):
        caption = (MarkedWord(text, 0.5, True), MarkedWord(text, 0.5, False))
        hostile = pair(pair_id=text, caption=caption, proposal=caption, label=text)
        return write(tmp_path, hostile, summary=PageSummary(text, ((text, text),)))

    page, plain = page_of(text), page_of("harmless")
    assert tags(page) == tags(plain)  # no element comes from a caption
    assert set(page.all("img")[0].attributes) == {"alt", "src"}
    assert set(page.all("del")[1].attributes) == {"title"}
    card = page.all("article")[0]
    assert [one.text() for one in card.all("p")] == [f"{text} {text}"] * 2
    assert card.all("code")[0].text() == card.all("b")[0].text() == text
    assert page.all("title")[0].text() == page.all("dt")[0].text() == page.all("dd")[0].text() == text


def test_the_page_is_whole_in_itself(tmp_path):
    plot = io.BytesIO()
    Image.new("RGB", (40, 30), (0, 90, 180)).save(plot, "PNG")
    page = write(tmp_path, pair(), plot_png=plot.getvalue())
    assert image_of(page.all("img", class_="plot")[0]).size == (40, 30)
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0].attributes["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:" and "script-src" not in rules
    assert not page.all("script") and not page.all("link") and not page.all("a")
    source = (tmp_path / "page.html").read_text()
    without_images = re.sub(r'src="data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+"', "", source)
    assert "src=" not in without_images
    assert not re.search(r"//|url\(|@import|href", without_images)
    assert "prefers-color-scheme: dark" in source


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "CMYK"])
def test_images_keep_their_look_and_shrink_when_large(tmp_path, mode):
    small = Image.new("RGB", (24, 16), (200, 30, 30)).convert(mode)
    large = Image.new("RGB", (1600, 800), (20, 120, 60)).convert(mode)
    page = write(tmp_path, pair(image=small), pair(image=large))
    first, second = [image_of(card.all("img")[0]) for card in page.all("article")]
    assert first.size == (24, 16) and second.size == (368, 184)
    assert large.size == (1600, 800)  # the caller's image is untouched
    for shown, original in ((first, small), (second, large)):
        wanted = np.asarray(original.convert("RGB"), int)[0, 0]
        assert np.abs(np.asarray(shown, int) - wanted).max() <= 4


def test_no_pairs_still_make_a_page(tmp_path):
    page = write(tmp_path)
    assert "No pair was flagged" in page.all("h2")[0].text()
    assert page.all("dl") and not page.all("article") and not page.all("ul")
    bare = write(tmp_path, summary=PageSummary("Nothing", ()))
    assert not bare.all("dl") and not bare.all("section")


@pytest.mark.parametrize("field_name", ["p_match", "proposal_probability"])
@pytest.mark.parametrize("value", [-0.1, 1.2, float("nan")])
def test_an_impossible_probability_is_refused_and_the_old_page_stays(tmp_path, field_name, value):
    write(tmp_path, pair())
    before = (tmp_path / "page.html").read_bytes()
    with pytest.raises(DataError, match=f"pair scene-9: {field_name}"):
        write(tmp_path, pair(pair_id="scene-9", **{field_name: value}))
    assert (tmp_path / "page.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_same_pairs_make_the_same_bytes_in_a_new_folder(tmp_path):
    for folder in ("one", "two/deep"):
        write_caught_page(tmp_path / folder / "page.html", SUMMARY, [pair()])
    assert (tmp_path / "one/page.html").read_bytes() == (tmp_path / "two/deep/page.html").read_bytes()
