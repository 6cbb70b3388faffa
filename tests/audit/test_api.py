"""`pmpguard.audit` from Python: every kind of data, given embeddings, a model, and what the result offers."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.planted_pairs import planted, write_clip_folder
from PIL import Image
from sklearn.metrics import roc_auc_score

import pmpguard
from pmpguard.audit import Audit
from pmpguard.audit.audit import audit_dataset
from pmpguard.audit.issues import read_issues, read_summary
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world


class Frame:
    """Columns by name, as a pandas.DataFrame gives them."""

    def __init__(self, **columns):
        self.columns = list(columns)
        self.values = columns

    def __getitem__(self, name):
        return self.values[name]


class Dataset(Frame):
    """The same as a datasets.Dataset gives it."""

    def __init__(self, **columns):
        super().__init__(**columns)
        self.column_names = self.columns


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_world(synthetic_scenes(24, size=32), tmp_path_factory.mktemp("scenes") / "world")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Retriever.create(preset("tiny", dim=32, image_size=32), ["a red roof", "a blue river"]).eval()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Planted mismatched pairs: the folder of embeddings, what was planted, and all of it in memory."""
    folder = tmp_path_factory.mktemp("embedded") / "emb"
    pairs = planted(images=150, rate=0.3)
    write_clip_folder(folder, pairs)
    return folder, pairs, read_clip_embeddings(folder)


@pytest.fixture(scope="module")
def found(embedded):
    folder, _, _ = embedded
    return pmpguard.audit(folder)


def test_a_folder_of_embeddings_is_judged_as_the_command_line_does(tmp_path, embedded, found):
    folder, pairs, stored = embedded
    outcome = audit_dataset(stored.table, tmp_path / "out", embeddings=folder)
    assert [row.p_match for row in found.rows] == [row.p_match for row in outcome.rows]
    assert roc_auc_score(~pairs.wrong, found.p_match) > 0.97
    low, high = found.noise_rate_interval
    assert low <= pairs.wrong.mean() <= high and found.noise_rate == pytest.approx(
        pairs.wrong.mean(), abs=0.06
    )


def test_given_embeddings_of_distinct_items_or_of_pairs_judge_alike(embedded, found):
    _, _, stored = embedded
    table = stored.table
    by_item = pmpguard.audit(table, texts=stored.captions, images=torch.from_numpy(np.array(stored.images)))
    by_pair = pmpguard.audit(
        table, texts=stored.captions[table.caption_codes], images=stored.images[table.image_codes]
    )
    for audit in (by_item, by_pair):
        np.testing.assert_allclose(audit.p_match, found.p_match, atol=1e-6)
        assert audit.noise_rate == pytest.approx(found.noise_rate, abs=1e-6)


def test_encoders_of_different_dimensions_judge_without_a_common_space(embedded):
    _, pairs, stored = embedded
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(stored.captions.shape[1] + 8,) * 2))[0]
    texts = np.asarray(stored.captions) @ rotation[: stored.captions.shape[1]]
    audit = pmpguard.audit(stored.table, texts=texts, images=stored.images, bootstrap=0)
    assert roc_auc_score(~pairs.wrong, audit.p_match) > 0.9
    assert audit.noise_rate_interval is None


def test_issues_report_and_cleaning(tmp_path, embedded, found):
    _, _, stored = embedded
    issues = found.issues
    assert isinstance(found, Audit) and isinstance(issues, pa.Table)
    assert issues["rank"].to_pylist() == list(range(1, len(stored.table) + 1))
    flagged = issues.filter(issues["flag"])["pair_id"].to_pylist()
    assert len(flagged) == found.summary.flagged > 0
    page = found.report(tmp_path / "report")
    assert page.is_file() and read_issues(tmp_path / "report" / "issues.parquet") == read_rows(
        issues, tmp_path
    )
    assert read_summary(tmp_path / "report" / "summary.json") == found.summary
    cleaned = found.clean()
    assert isinstance(cleaned, PairTable)
    assert set(stored.table.column("pair_id")) - set(cleaned.column("pair_id")) == set(flagged)
    weighted = found.clean("weight")
    assert len(weighted) == len(stored.table) and min(weighted.column("weight")) < 0.1
    with pytest.raises(ConfigError, match="holds"):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "a.txt").write_text("mine")
        found.report(tmp_path / "other")


def read_rows(issues, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(issues, tmp_path / "again.parquet")
    return read_issues(tmp_path / "again.parquet")


def test_representations_are_short_and_inert(found):
    lines = repr(found).splitlines()
    assert 3 <= len(lines) <= 6 and "noise rate" in lines[1] and f"{len(found.rows):,} pairs" in lines[0]
    page = found._repr_html_()
    assert page.count("<tr>") == 6
    row = replace(found.rows[0], caption="<script>alert(1)</script>")
    nasty = Audit(found.table, replace(found.judged, rows=[row, *found.rows[1:]]))
    assert "<script>" not in nasty._repr_html_() and "alert(1)" in nasty._repr_html_()


@pytest.mark.parametrize("kind", [Frame, Dataset])
def test_a_frame_or_dataset_of_names_is_judged_as_its_table(scenes, model, kind):
    data = kind(**{name: scenes.column(name) for name in ("image", "caption", "split", "label")})
    options = {"model": model, "bootstrap": 0, "device": "cpu"}
    audit = pmpguard.audit(data, root=scenes.root, **options)
    expected = pmpguard.audit(scenes, **options)
    np.testing.assert_array_equal(audit.p_match, expected.p_match)
    assert audit.table.column("split") == scenes.column("split")


def test_images_in_memory_and_lists_of_captions(scenes, model):
    firsts = scenes.first_rows
    captions = [scenes.captions[row : row + 2] for row in firsts]
    files = [scenes.root / scenes.column("image")[row] for row in firsts]
    images = [Image.open(path) for path in files]
    stored = [{"bytes": path.read_bytes(), "path": None} for path in files]
    audits = [
        pmpguard.audit(
            Dataset(picture=given, sentences=captions, weather=["dry"] * len(files)),
            model=model, columns={"image": "picture"}, bootstrap=0, device="cpu",
        )
        for given in (images, stored, list(map(str, files)))
    ]  # fmt: skip
    for audit in audits:
        assert len(audit.table) == 2 * len(files) and audit.unjudged == {}
        assert audit.table.captions == [caption for two in captions for caption in two]
        assert set(audit.table.column("weather")) == {"dry"}
        np.testing.assert_allclose(audit.p_match, audits[0].p_match)


def test_a_path_with_named_columns(tmp_path, scenes, model):
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as stream:
        rows = zip(scenes.column("image"), scenes.captions, strict=True)
        csv.writer(stream).writerows([("shot", "said"), *rows])
    names = {"image": "shot", "caption": "said"}
    audit = pmpguard.audit(path, columns=names, root=scenes.root, model=model, bootstrap=0, device="cpu")
    assert audit.table.captions == scenes.captions


def test_a_model_folder_and_a_subset(tmp_path, scenes, model):
    model.save(tmp_path / "model")
    audit = pmpguard.audit(scenes, model=tmp_path / "model", splits=["train"], bootstrap=0, device="cpu")
    assert {row.split for row in audit.rows} == {"train"}
    expected = np.array(scenes.column("split")) == "train"
    np.testing.assert_array_equal(np.isfinite(audit.p_match), expected)
    assert str(tmp_path / "model") in audit.summary.model


def test_what_cannot_be_used_is_said(scenes, model):
    with pytest.raises(ConfigError, match="texts or images are missing"):
        pmpguard.audit(scenes, texts=np.eye(3))
    with pytest.raises(ConfigError, match="a model and embeddings"):
        pmpguard.audit(scenes, texts=np.eye(3), images=np.eye(3), model=model)
    with pytest.raises(DataError, match=r"images have shape \(3, 3\)"):
        pmpguard.audit(scenes, texts=np.eye(3), images=np.eye(3))
    with pytest.raises(DataError, match="data is a int"):
        pmpguard.audit(3)
    with pytest.raises(DataError, match=r"row 0: no column for the caption\nFix: found image, words"):
        pmpguard.audit(Frame(image=["a.png"], words=["a pond"]))
    with pytest.raises(DataError, match=r"row 0: no column 'shot'\nFix: found image, caption"):
        pmpguard.audit(Frame(image=["a.png"], caption=["a pond"]), columns={"image": "shot"})
    with pytest.raises(ConfigError, match="'colour'"):
        pmpguard.audit(Frame(image=["a.png"], caption=["a pond"]), columns={"colour": "x"})
    with pytest.raises(DataError, match="row 0: image is a float"):
        pmpguard.audit(Frame(image=[0.5], caption=["a pond"]))


def test_a_report_of_images_in_memory_shows_them(tmp_path, model):
    generator = np.random.default_rng(0)
    images = [Image.fromarray(generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(12)]
    captions = [f"a {word} roof" for word in ("red", "blue", "big", "old", "wet", "new")] * 2
    audit = pmpguard.audit(Frame(image=images, caption=captions), model=model, bootstrap=0, device="cpu")
    shown = audit.table.root / audit.table.column("image")[0]
    assert np.array_equal(np.asarray(Image.open(shown)), np.asarray(images[0]))
    page = audit.report(tmp_path / "report").read_text()
    start = page.index('"sheets":{')
    assert len(page[start:].partition("}")[0]) > 1000  # thumbnails lie in the page
