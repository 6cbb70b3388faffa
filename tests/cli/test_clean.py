"""From audit over cleaning to training, with images that are damaged, missing and doubled."""

from __future__ import annotations

import csv
import shutil

import pytest
import torch

from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world


@pytest.mark.slow
@pytest.mark.parametrize("out", ["cleaned.parquet", "cleaned"])
def test_a_dataset_with_bad_images_can_be_audited_cleaned_and_trained_on(tmp_path, capsys, out):
    torch.manual_seed(0)
    write_world(synthetic_scenes(24, size=32), tmp_path / "world")
    Retriever.create(preset("tiny", dim=32, image_size=32), ["a red roof"]).save(tmp_path / "model")
    table = read_pairs(tmp_path / "world")
    images = list(dict.fromkeys(table.column("image")))
    damaged, missing, copied = images[:3]
    (table.root / damaged).write_bytes(b"\xff\xd8 no image")
    (table.root / missing).unlink()
    shutil.copy(table.root / images[4], table.root / copied)
    report, cleaned = tmp_path / "report", tmp_path / out
    told = ["--model", str(tmp_path / "model"), "--bootstrap", "5", "--out", str(report)]
    assert main(["audit", str(tmp_path / "world"), *told]) == 3  # some pairs could not be judged
    assert main(["clean", str(report), "--policy", "weight", "--out", str(cleaned)]) == 0
    assert "dropped, cannot be read: 10" in capsys.readouterr().out
    with cleaned.with_name(f"{out}.diff.csv").open(encoding="utf-8") as stream:
        dropped = {row["image"] for row in csv.DictReader(stream) if row["change"].startswith("dropped")}
    assert dropped == {damaged, missing}
    left = [] if out == "cleaned" else ["--images", str(table.root)]
    small = ["--train.epochs", "1", "--train.batch_size", "16", "--train.model.image_size", "32"]
    small += [
        "--train.model.dim",
        "32",
        "--train.method",
        "infonce",
        "--hold_out.test",
        "4",
        "--hold_out.val",
        "4",
    ]
    assert main(["train", str(tmp_path / "run"), "--dataset", str(cleaned), *left, *small]) == 0
