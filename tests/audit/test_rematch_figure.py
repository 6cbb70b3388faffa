"""The figure of wrong and rematched captions: right colours at the right words, whatever the text."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from pmpguard.audit.rematch_figure import GREEN, PLAIN, RED, chosen_rows, coloured_words, draw_rematches
from pmpguard.audit.rows import AuditRow, Proposal, WordVerdict
from pmpguard.errors import ConfigError, DataError


def row(caption="a $red$ roof_1 ^2", pair="a", proposals=True):
    better = Proposal(
        "a green lawn", 0.9, "b", (WordVerdict(2, 7, 0.9, False), WordVerdict(8, 12, 0.5, False))
    )
    start = caption.index("r")
    words = (WordVerdict(start, start + 3, 0.1, True),)
    return AuditRow(
        pair, "a.png", caption, "train", "", 0.1, True, 1, {}, words, (0, 0), (better,) * proposals
    )


def test_words_get_their_colours():
    one = row()
    assert coloured_words(one.caption, one.words, supported=False) == [
        ("a", PLAIN), ("$red$", RED), ("roof_1", PLAIN), ("^2", PLAIN),
    ]  # fmt: skip
    best = one.proposals[0]
    assert coloured_words(best.caption, best.words, supported=True) == [
        ("a", PLAIN), ("green", GREEN), ("lawn", PLAIN),
    ]  # fmt: skip


def test_a_repeated_word_is_coloured_where_it_is_meant():
    found = coloured_words("red roof red", [WordVerdict(9, 12, 0.1, True)], supported=False)
    assert [colour for _, colour in found] == [PLAIN, PLAIN, RED]


def has_colour(image, colour):
    wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    return (np.abs(np.asarray(image.convert("RGB")).astype(int) - wanted).max(-1) < 12).any()


def test_the_image_shows_image_red_and_green(tmp_path):
    pytest.importorskip("matplotlib")
    path = draw_rematches(tmp_path / "out/figure.png", [row(), row("many red roofs " * 6, "b", False)],
                          lambda name: Image.new("RGB", (20, 20), (10, 20, 200)))  # fmt: skip
    drawn = Image.open(path)
    assert all(has_colour(drawn, colour) for colour in (RED, GREEN, "#0a14c8"))
    wide, high = drawn.size
    assert not has_colour(drawn.crop((0, high // 2, wide, high)), GREEN)  # the second has no proposal


def test_vectors_and_missing_images(tmp_path):
    pytest.importorskip("matplotlib")
    path = draw_rematches(tmp_path / "figure.svg", [row()], lambda name: None)
    assert path.read_text().startswith("<?xml")


def test_wrong_wishes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.gif"):
        draw_rematches(tmp_path / "figure.gif", [row()], lambda name: None)
    with pytest.raises(ConfigError, match="no pairs"):
        draw_rematches(tmp_path / "figure.png", [], lambda name: None)
    with pytest.raises(ConfigError, match="at most 100"):
        draw_rematches(tmp_path / "figure.png", [row()] * 101, lambda name: None)
    with pytest.raises(DataError, match="'z' is not in this report"):
        chosen_rows([row()], ["a", "z"])
    assert [one.pair_id for one in chosen_rows([row(), row(pair="b")], ["b", "a"])] == ["b", "a"]
