"""`pmpguard train` and `pmpguard evaluate` through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pmpguard
from pmpguard.cli import train as command
from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs
from pmpguard.evaluation.detection import RematchPrecision
from pmpguard.experiments import run as experiment
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training.interrupt import Interrupted

SMALL = {
    "method": "pmpguard", "settings": {"detect_from_epoch": 1, "cga": True, "ranking": "awareness"},
    "epochs": 2, "batch_size": 40, "device": "cpu",
    "model": {"vision": "tiny", "text": "tiny", "dim": 32, "image_size": 64, "max_tokens": 24},
    "optimiser": {"head_lr": 0.001},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty scenes as files: 48 for training, 6 and 6 to validate and test."""
    folder = tmp_path_factory.mktemp("data") / "world"
    write_world(synthetic_scenes(60), folder)
    return folder


def train_words(run: Path, world: Path, *more: str) -> list[str]:
    noise = ["--noise.rate", "0.4"]
    return ["train", str(run), "--dataset", str(world), "--train", json.dumps(SMALL), *noise, *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    run = tmp_path_factory.mktemp("runs") / "first"
    assert main(train_words(run, world)) == 0
    return run


@pytest.mark.slow
def test_training_leaves_a_whole_run_and_continues_when_called_again(
    trained: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "metrics.jsonl", "noise.json", "environment.json", "checkpoints", "model"} <= names
    before = (trained / "metrics.jsonl").read_bytes()
    assert main(train_words(trained, world, "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == str(trained) and told["row"]["rate"] == 0.4 and told["row"]["method"] == "pmpguard"
    assert 0 <= told["rankings"]["awareness"]["mr"] <= 100
    assert (trained / "metrics.jsonl").read_bytes() == before  # nothing was left to do


@pytest.mark.slow
def test_the_recipe_for_a_first_model_is_read(tmp_path: Path, world: Path) -> None:
    recipe = Path(pmpguard.__file__).parent / "experiments" / "recipes" / "train" / "frozen-light.yaml"
    tiny = {"vision": "tiny", "text": "tiny", "dim": "16", "image_size": "64"}
    changes = [word for name, value in tiny.items() for word in (f"--train.model.{name}", value)]
    words = ["train", str(tmp_path / "run"), "--dataset", str(world), "--config", str(recipe), *changes]
    assert main([*words, "--train.epochs", "1", "--train.device", "cpu"]) == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["model"]["vision_options"]["frozen"] and not kept["settings"]["cga"]


def test_the_text_says_how_good_model_and_detection_are(
    trained: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(trained, world)) == 0
    text = capsys.readouterr().out
    assert "6 images, 30 captions" in text and "detection: estimated mismatch rate" in text
    assert "0.400 injected" in text and "on validation" in text and f"model in {trained / 'model'}" in text


def test_other_settings_in_the_same_folder_are_refused_by_name(
    trained: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("noise.json", "config.json", "environment.json", "metrics.jsonl")
    before = [(trained / name).read_bytes() for name in names]
    assert main(train_words(trained, world, "--train.seed", "3")) == 1
    assert "config.seed: 0 then, 3 now" in capsys.readouterr().err
    assert main(train_words(trained, world, "--noise.level", "image")) == 1
    assert "noise: " in capsys.readouterr().err
    assert [(trained / name).read_bytes() for name in names] == before


def test_a_finished_run_without_checkpoints_is_another_s_as_well(
    tmp_path: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its model, noise and settings stay; the very same settings train it again."""
    run = tmp_path / "run"
    plain = {**SMALL, "method": "infonce", "settings": {}, "epochs": 1, "checkpoint_every": -1}
    words = ["train", str(run), "--dataset", str(world), "--train", json.dumps(plain)]
    assert main(words) == 0 and not list(run.glob("checkpoints/step-*"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for more, named in (
        (("--train.seed", "5"), "config.seed: 0 then, 5 now"),
        (("--noise.rate", "0.2"), "noise: "),
    ):
        assert main([*words, *more]) == 1
        assert f"{run} cannot be resumed: {named}" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert main(words) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--train.method", "pmpgard"], "method: unknown method 'pmpgard'"),
        (
            ["--train.model.ranking", "pooled"],
            "ranking: 'pooled' is given, but pmpguard trains with 'awareness'",
        ),
        (["--train.model.cross_gated.use", "false"], "\nFix: remove it, or set train.settings.cga"),
        (["--train.device", "cuda:99"], "device: cuda:99 is asked for"),
        (["--train.settings.passes", "2"], "settings.passes: this setting is called clean_oversampling"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_data_is_read(
    more: list[str],
    message: str,
    tmp_path: Path,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr(experiment, "read_pairs", read)
    assert main(train_words(tmp_path / "run", world, *more)) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    assert main(train_words(tmp_path / "file" / "run", world)) == 1
    assert "file is a file, not a folder" in capsys.readouterr().err


def test_a_model_setting_given_its_default_is_told_from_one_that_is_not_given(
    tmp_path: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(tmp_path), "--dataset", str(world), "--train.method", "infonce"]
    assert main([*words, "--train.model.ranking", "awareness"]) == 1
    assert (
        "train.model.ranking: 'awareness' is given, but infonce trains with 'pooled'"
        in capsys.readouterr().err
    )


def test_encoders_from_scratch_are_pointed_out_on_real_data(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = []

    def stopped(config: experiment.ExperimentConfig, *_: object, **__: object) -> None:
        sizes.append(config.train.model.image_size)
        raise Interrupted("stopped")

    monkeypatch.setattr(command, "run_experiment", stopped)
    real, pretrained = ["--dataset", str(world)], ["--config", "light"]
    for more, said in ((real, 1), ([], 0), ([*real, *pretrained], 0)):
        assert main(["train", str(tmp_path / "run"), *more]) == 130
        assert capsys.readouterr().err.count("tiny encoders learn from scratch") == said
    assert main(["train", str(tmp_path / "run"), *real, "--train.model.vision", "efficientnet-lite0"]) == 130
    assert sizes == [64, 64, 224, 224]


def test_a_former_option_is_refused_with_its_new_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run", "--train.model.max_words", "30"]) == 2
    assert "max_words is called max_tokens" in capsys.readouterr().err


def evaluate(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["evaluate", *words, "--device", "cpu", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_evaluating_a_saved_model_repeats_what_training_measured(
    trained: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(trained, world, "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    words = [str(trained / "model"), "--dataset", str(world), "--rankings", "[pooled, gated]"]
    found = evaluate(*words, capsys=capsys)
    assert found["ranking"] == "awareness" and found["split"] == "test" and found["shortlist"] is None
    for name in ("awareness", "pooled", "gated"):
        assert found["rankings"][name]["mr"] == pytest.approx(told["rankings"][name]["mr"], abs=1e-6)
    assert set(found["intervals"]) >= {"mr", "i2t_r1"}
    assert found["seconds"] > 0 and found["peak_memory_gb"] > 0
    everything = evaluate(*words[:3], "--shortlist", "30", "--bootstrap", "0", capsys=capsys)
    assert everything["rankings"]["awareness"] == pytest.approx(found["rankings"]["awareness"], abs=1e-6)
    some = evaluate(*words[:3], "--shortlist", "2", "--bootstrap", "0", capsys=capsys)
    assert some["shortlist"] == 2 and some["intervals"] == {}


def test_evaluating_on_synthetic_scenes_and_another_split(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(str(trained / "model"), "--scenes", "30", "--split", "val", capsys=capsys)
    assert found["dataset"] == "scenes-0" and found["images"] == 3 and found["captions"] == 15


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_split_that_is_not_there_is_named(
    trained: Path, world: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read_pairs(world)
    table.filter([split != "val" for split in table.column("split")]).write_parquet(
        tmp_path / "pairs.parquet"
    )
    words = {
        "train": train_words(tmp_path / "run", tmp_path),
        "evaluate": ["evaluate", str(trained / "model"), "--dataset", str(tmp_path), "--split", "val"],
    }
    assert main(words[verb]) == 1
    error = capsys.readouterr().err
    assert "'val'" in error and "train, test" in error


@pytest.mark.parametrize("name", ["RSICD", "ucm", "rsitmd", "rs5m", "mine"])
def test_a_missing_dataset_says_what_to_download_and_where_to_put_it(
    trained: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / name
    for words in (["train", str(tmp_path / "run")], ["evaluate", str(trained / "model")]):
        assert main([*words, "--dataset", str(place)]) == 1
        error = capsys.readouterr().err
        assert f"{place}: no such dataset" in error and "--dataset" in error
        files = {"RSICD": "dataset_rsicd.json", "ucm": "dataset_ucm.json", "rsitmd": "dataset_RSITMD.json"}
        files["rs5m"] = "train/*.tar"
        for wanted in [files[name]] if name in files else files.values():
            assert f"{place}/{wanted}" in error
        assert error.count("https://") == (1 if name in files else 4)
    assert not (tmp_path / "run").exists()


def test_wrong_usage_is_refused_before_anything_runs(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["evaluate", str(trained / "model"), "--rankings", "[best]"],
        ["train", str(tmp_path), "--train.speed", "3"],
        ["train", str(tmp_path), "--train.precision", "fp8"],
    ):
        assert main(words) == 2
        assert words[-2].partition(".")[0].lstrip("-") in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "no model here" in capsys.readouterr().err


def test_ctrl_c_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped at step 3 of 9; run the same command again to continue")

    monkeypatch.setattr(command, "run_experiment", stopped)
    assert main(["train", str(tmp_path)]) == 130
    assert "stopped at step 3 of 9; run the same command again" in capsys.readouterr().out


def test_rematching_is_described_in_one_line() -> None:
    both = command.describe_rematching(RematchPrecision(20, 0.85, 0.9))
    assert both == "rematching: 20 captions proposed, 85.0% for the right image, 90.0% of its scene class"
    assert command.describe_rematching(RematchPrecision(0, None, None)) == "rematching: 0 captions proposed"


@pytest.mark.slow
def test_a_dataset_without_splits_is_trained_and_measured_on_images_held_out(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read_pairs(world)
    lines = [
        {"image": str(table.image_path(row)), "caption": caption}
        for row, caption in enumerate(table.captions)
    ]
    archive = tmp_path / "archive"  # a name that speaks of no split
    archive.mkdir()
    (archive / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plain = ["--dataset", str(archive / "pairs.jsonl"), "--allow_outside"]
    train = ["train", str(tmp_path / "run"), *plain, "--train", json.dumps(SMALL)]
    assert main(train) == 1
    told = capsys.readouterr().err
    assert "no split 'val'" in told and "--hold_out.test 6 --hold_out.val 6 keeps" in told
    held = ["--hold_out.test", "7", "--hold_out.val", "5"]
    assert main([*train, *held, "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["images"] == 7
    measure = ["evaluate", str(tmp_path / "run" / "model"), *plain, "--bootstrap", "0", "--json"]
    assert main([*measure, *held]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["images"] == 7 and again["rankings"]["awareness"] == trained["rankings"]["awareness"]
    assert main(measure) == 1


@pytest.mark.slow
def test_a_new_run_says_beforehand_what_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(tmp_path / "run"), "--scenes", "40", "--train.epochs", "1"]
    words += [word for name in ("vision", "text") for word in (f"--train.model.{name}", "tiny")]
    words += ["--train.batch_size", "40", "--train.model.image_size", "64", "--train.model.dim", "32"]
    told = "training for one epoch by infonce takes less than a minute and 0.0 GB for model and images here"
    for expected in (1, 0):  # a run that goes on, or is finished, says nothing
        assert main([*words, "--train.method", "infonce", "--train.device", "cpu"]) == 0
        assert capsys.readouterr().err.count(told) == expected
