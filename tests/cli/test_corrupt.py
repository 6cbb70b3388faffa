"""`pmpguard corrupt` from files to files, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.search_examples import killed_at

from pmpguard.cli.corrupt import corrupt, import_noise
from pmpguard.cli.main import as_plain, main
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.manifest import apply_manifest


@pytest.fixture
def dataset(tmp_path):
    """Thirty images with two captions each, twenty of them for training."""
    rows = [
        {
            "pair_id": f"{image}-{number}",
            "image": f"{image}.png",
            "image_id": str(image),
            "caption": f"scene {image} in words {number}",
            "split": "train" if image < 20 else "test",
            "label": "pond" if image % 3 else "port",
        }
        for image in range(30)
        for number in range(2)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files_and_report(dataset, tmp_path):
    out, pairs_file = tmp_path / "noise" / "noise.json", tmp_path / "noise" / "noisy.parquet"
    report = corrupt(dataset, out, 0.4, seed=3, write_pairs=pairs_file)
    clean = read_pairs(dataset)
    corruption = apply_manifest(clean, out)
    assert report.wrong == int(corruption.is_noisy.sum()) == 16 and report.pairs == 40
    assert report.effective_rate == 0.4 and report.fingerprint == clean.fingerprint
    assert read_pairs(pairs_file).captions == corruption.table.captions
    for example in report.examples:
        row = clean.column("pair_id").index(example.pair_id)
        assert (example.was, example.now) == (clean.captions[row], corruption.table.captions[row])
    assert len(report.examples) == 3 and "16 of 40 captions are now mismatched" in report.as_text()
    assert json.loads(json.dumps(as_plain(report)))["out"] == str(out)


def test_killed_at_any_moment_no_noise_file_is_without_its_pairs_and_the_next_run_ends_it(dataset, tmp_path):
    def write(folder: Path) -> None:
        corrupt(dataset, folder / "noise.json", 0.4, seed=3, write_pairs=folder / "noisy.parquet")

    write(tmp_path / "straight")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "straight").iterdir()}
    assert set(whole) == {"noise.json", "noisy.parquet"}
    for event in range(1, 40):
        folder = tmp_path / str(event)
        if not killed_at(event, write, folder):
            break
        assert not (folder / "noise.json").exists() or (folder / "noisy.parquet").exists()
        write(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert event > 4


def test_a_noise_file_that_cannot_be_written_leaves_no_pairs(dataset, tmp_path):
    (tmp_path / "full").write_text("a file, not a folder")
    with pytest.raises(OSError):
        corrupt(dataset, tmp_path / "full" / "noise.json", 0.4, write_pairs=tmp_path / "noisy.parquet")
    assert not (tmp_path / "noisy.parquet").exists()


def test_the_command_line_gives_the_same_bytes(dataset, tmp_path, capsys):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    words = ["0.5", "--seed", "9", "--level", "image", "--json"]
    assert main(["corrupt", str(dataset), str(first), *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["level"] == "image" and printed["mode"] == "permute" and printed["wrong"] == 20
    assert (
        main(["corrupt", str(dataset), str(second), *words, "--write-pairs", str(tmp_path / "p.parquet")])
        == 0
    )
    assert first.read_bytes() == second.read_bytes() and (tmp_path / "p.parquet").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.jsonl", "out.json", "0.1"], "absent.jsonl"),
        (["pairs.jsonl", "out.json", "1.5"], "rate is 1.5"),
        (["pairs.jsonl", "out.json", "0.1", "--split", "dev"], "no split named 'dev'"),
        (["pairs.jsonl", ".", "0.1"], "is a folder"),
        (["pairs.jsonl", "out.json", "0.1", "--write-pairs", "pairs.csv"], "ending in .parquet"),
        (["pairs.jsonl", "out.json", "0.1", "--mode", "partial"], "go together"),
        (["pairs.jsonl", "out.json", "0.1", "--seed=-4"], "cannot be negative"),
    ],
)
def test_errors_are_clear_and_leave_nothing(dataset, words, message, monkeypatch, capsys):
    monkeypatch.chdir(dataset.parent)
    assert main(["corrupt", *words]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert [entry.name for entry in dataset.parent.iterdir()] == ["pairs.jsonl"]


def test_partly_wrong_captions(dataset, tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    offers = {f"{image}-{number}": f"scene {image} in red" for image in range(20) for number in range(2)}
    wrong.write_text(
        "".join(json.dumps({"pair_id": key, "caption": text}) + "\n" for key, text in offers.items())
    )
    report = corrupt(dataset, tmp_path / "noise.json", 0.25, mode="partial", wrong_captions=wrong)
    assert report.mode == "partial" and report.wrong == 10
    assert all(example.now == offers[example.pair_id] for example in report.examples)
    with pytest.raises(ConfigError, match="neither level"):
        corrupt(dataset, tmp_path / "n.json", 0.1, level="image", mode="partial", wrong_captions=wrong)
    for line in (
        "[]",
        "{",
        '{"pair_id": "0-0"}',
        '{"pair_id": "zero", "caption": "a"}',
        '{"pair_id": [], "caption": 1}',
    ):
        wrong.write_text(line + "\n")
        with pytest.raises(DataError, match=r"wrong\.jsonl line 1"):
            corrupt(dataset, tmp_path / "n.json", 0.1, mode="partial", wrong_captions=wrong)
    assert not (tmp_path / "n.json").exists()


def test_a_matrix_of_scores_filters(dataset, tmp_path):
    table = read_pairs(dataset)
    scores = np.random.default_rng(0).random((60, 30)).astype(np.float32)
    scores[np.arange(60), table.image_codes] += 0.5
    np.save(tmp_path / "scores.npy", scores)
    corrupt(dataset, tmp_path / "noise.json", 0.5, similarity=tmp_path / "scores.npy")
    result = apply_manifest(table, tmp_path / "noise.json")
    rows = np.flatnonzero(result.is_noisy)
    clean = scores[np.arange(40), table.image_codes[:40]].astype(np.float64)
    assert (scores[result.source_rows[rows], table.image_codes[rows]] < np.quantile(clean, 0.1)).all()
    (tmp_path / "scores.npy").write_text("not an array")
    with pytest.raises(DataError, match=r"scores\.npy: not a plain"):
        corrupt(dataset, tmp_path / "noise.json", 0.5, similarity=tmp_path / "scores.npy")


def test_a_model_filters(tmp_path):
    """An untrained model: its cosines decide, and match those computed pair by pair."""
    from pmpguard.data.images.decode import load_pair_image
    from pmpguard.models.config import RetrieverConfig
    from pmpguard.models.retriever import Retriever
    from pmpguard.synthetic.scenes import synthetic_scenes, write_world

    world = synthetic_scenes(12, seed=1, captions=2)
    table = write_world(world, tmp_path / "world")
    config = RetrieverConfig(vision="tiny", text="tiny", dim=16, image_size=64)
    Retriever.create(config, table.captions).save(tmp_path / "model")
    report = corrupt(
        tmp_path / "world" / "pairs.parquet",
        tmp_path / "noise.json",
        0.5,
        similarity=tmp_path / "model",
        images=tmp_path / "world" / "images",
    )
    model = Retriever.load(tmp_path / "model")
    pixels = [load_pair_image(table, int(row)) for row in table.first_rows]
    images = model.encode_images(pixels).pooled.numpy()
    captions = model.encode_texts(table.captions).pooled.numpy()
    result = apply_manifest(read_pairs(tmp_path / "world" / "pairs.parquet"), tmp_path / "noise.json")
    train = np.flatnonzero(np.array(table.column("split")) == "train")
    cosines = captions @ images.T  # (captions, images)
    threshold = np.quantile(cosines[train, table.image_codes[train]], 0.1)
    rows = np.flatnonzero(result.is_noisy)
    over = cosines[result.source_rows[rows], table.image_codes[rows]] >= threshold
    assert report.wrong == len(rows) == 10 and report.over_threshold == int(over.sum())


def test_import_of_another_projects_index(dataset, tmp_path):
    order = np.random.default_rng(0).permutation(40)
    np.save(tmp_path / "index.npy", order)
    report = import_noise(dataset, tmp_path / "index.npy", tmp_path / "noise.json", "permutation")
    clean: PairTable = read_pairs(dataset)
    result = apply_manifest(clean, tmp_path / "noise.json")
    assert result.table.captions[:40] == [clean.captions[place] for place in order]
    assert report.mode == "imported" and report.wrong == int(result.is_noisy.sum())
    images = np.arange(40) // 2
    np.save(tmp_path / "index.npy", np.random.default_rng(1).permutation(images))
    report = import_noise(dataset, tmp_path / "index.npy", tmp_path / "noise.json")
    assert 0 < report.effective_rate <= report.requested_rate


def test_another_projects_index_is_imported_on_the_command_line(dataset, tmp_path, capsys):
    order = np.random.default_rng(2).permutation(40)
    np.save(tmp_path / "index.npy", order)
    words = [str(dataset), str(tmp_path / "index.npy"), str(tmp_path / "noise.json")]
    assert main(["corrupt", "import", *words, "--kind", "permutation", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    clean = read_pairs(dataset)
    result = apply_manifest(clean, tmp_path / "noise.json")
    assert result.table.captions[:40] == [clean.captions[place] for place in order]
    assert printed["mode"] == "imported" and printed["wrong"] == int(result.is_noisy.sum())
    assert main(["corrupt", "import", *words]) == 1
    error = capsys.readouterr().err
    assert "as many captions to each image" in error and "or try --kind permutation" in error
