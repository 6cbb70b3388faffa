"""From an audit through its page to the cleaned dataset: what the browser saves is what `clean` reads."""

from __future__ import annotations

import pytest
from helpers.planted_pairs import planted, write_clip_folder
from helpers.report_pages import press, text

from pmpguard.audit.audit import AuditConfig, audit_dataset
from pmpguard.cli.clean import clean
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.embeddings import read_clip_embeddings


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decisions")
    write_clip_folder(folder / "emb", planted(images=40, rate=0.3))
    table = read_clip_embeddings(folder / "emb").table
    config = AuditConfig(bootstrap=0)
    return folder / "out", audit_dataset(table, folder / "out", config, embeddings=folder / "emb")


def test_decisions_of_a_real_page_clean_the_dataset(open_page, audited, tmp_path):
    out, outcome = audited
    page = open_page(outcome.page)
    press(page, "a d y e")  # the four worst: accept, drop, keep, and one written anew
    page.keyboard.type(" & <b>naïve</b> 🚢")
    press(page, "Enter 2")  # the second proposal of the fifth
    with page.expect_download() as download:
        page.click("#download")
    download.value.save_as(tmp_path / "decisions.json")

    worst = outcome.rows[:5]
    done = clean(out, tmp_path / "cleaned.jsonl", "rematch", decisions=tmp_path / "decisions.json")
    table = read_pairs(tmp_path / "cleaned.jsonl", images=tmp_path)
    found = dict(zip(table.column("pair_id"), table.captions, strict=True))
    assert worst[1].pair_id not in found
    assert [found[worst[place].pair_id] for place in (0, 2, 3, 4)] == [
        worst[0].proposals[0].caption,
        worst[2].caption,
        f"{worst[3].caption} & <b>naïve</b> 🚢",
        worst[4].proposals[1].caption,
    ]
    told = ("proposal accepted", "dropped", "kept", "edited")
    assert [done.changes[f"{what} by reviewer"] for what in told] == [2, 1, 1, 1]
    origin = dict(zip(table.column("pair_id"), table.column("provenance"), strict=True))
    assert origin[worst[4].pair_id].endswith(f"from {worst[4].proposals[1].source_pair}")


def test_the_page_says_what_was_not_looked_at(open_page, audited):
    figures = text(open_page(audited[1].page), "#figures")
    assert "all readable" not in figures and "not looked at" in figures
    assert "0 pairs, images not looked at" in figures
