"""The public names: each is found after `import pmpguard` alone, light until used, with its signature."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.planted_pairs import planted
from torch import Tensor, nn

import pmpguard
from pmpguard.data.pairs import PairTable
from pmpguard.models.config import preset
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

HEAVY = ("torch", "numpy", "pyarrow", "PIL", "transformers", "tokenizers", "jsonargparse", "yaml")
NAMES = [
    "load",
    "read_pairs",
    "NoiseDetector",
    "audit",
    "audit.Audit",
    "losses.InfoNCE",
    "losses.AwarenessHinge",
    "losses.Complementary",
    "losses.Distillation",
    "evaluation.recall.retrieval_recall",
    "models.attention.awareness.awareness_scores",
    "models.attention.cross_gated.CrossGatedAttention",
    "models.attention.boundary.optimal_boundary",
    "models.retriever.Retriever",
    "noise.inject.corrupt_pairs",
    "detection.mixture.fit_match_mixture",
    "kernels",
]
EACH_ALONE = """
import sys
from operator import attrgetter
for name in sys.argv[1].split(","):
    for module in [each for each in sys.modules if each.partition(".")[0] == "pmpguard"]:
        del sys.modules[module]
    import pmpguard
    print(name, callable(attrgetter(name)(pmpguard)))
"""


def run_python(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, pmpguard; dir(pmpguard); print([n for n in sys.argv[1].split(',') if n in sys.modules])"
    )
    assert run_python(code, ",".join(HEAVY)) == "[]\n"
    light = "import sys, pmpguard; pmpguard.evaluation, pmpguard.models; print('torch' in sys.modules)"
    assert run_python(light) == "False\n"


def test_every_name_is_found_after_importing_the_package_alone() -> None:
    lines = run_python(EACH_ALONE, ",".join(NAMES)).splitlines()
    assert lines == [f"{name} {name != 'kernels'}" for name in NAMES]


def test_dir_lists_the_public_names_and_others_are_errors() -> None:
    assert set(pmpguard.__all__) <= set(dir(pmpguard))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pmpguard.nonsense
    with pytest.raises(AttributeError, match=r"'pmpguard\.models' has no attribute 'nonsense'"):
        _ = pmpguard.models.nonsense
    with pytest.raises(ImportError, match="nonsense"):
        from pmpguard.evaluation import nonsense  # type: ignore[attr-defined]  # noqa: F401


def first_parameters(function: object, count: int) -> list[str]:
    assert callable(function)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return names[:count]


def test_texts_come_before_images_in_every_signature() -> None:
    awareness = pmpguard.models.attention.awareness.awareness_scores
    gated = pmpguard.models.attention.cross_gated.CrossGatedAttention
    assert first_parameters(awareness, 4) == ["words", "word_mask", "regions", "boundary"]
    assert first_parameters(gated.forward, 3) == ["words", "word_mask", "regions"]
    assert first_parameters(Retriever.score, 2) == ["texts", "images"]
    assert first_parameters(Retriever.explain, 2) == ["text", "image"]
    assert first_parameters(Retriever.similarity, 2) == ["texts", "images"]
    recall = pmpguard.evaluation.recall.retrieval_recall
    assert first_parameters(recall, 2) == ["scores", "caption_image"]
    assert first_parameters(pmpguard.noise.inject.corrupt_pairs, 4) == ["table", "rate", "seed", "level"]
    assert first_parameters(pmpguard.read_pairs, 1) == ["path"]


def test_a_model_is_loaded_encodes_scores_and_explains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Retriever.create(preset("tiny", dim=32), ["a round pond", "two planes"]).save(tmp_path / "model")
    model = pmpguard.load(str(tmp_path / "model"))
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    texts, regions = model.encode_texts(["a round pond", "planes"]), model.encode_images(images)
    assert isinstance(texts, Encoded) and isinstance(regions, Encoded)
    assert model.score(texts, regions).shape == (2, 3)
    assert len(model.explain("a round pond", images[0]).words) == 3
    queries, documents = model.encode_query("a round pond"), model.encode_document(images)
    assert model.similarity(queries, documents).shape == (1, 3)
    assert 3 <= len(repr(model).splitlines()) <= 5


def test_the_audit_shows_its_options() -> None:
    shown = inspect.signature(pmpguard.audit).parameters
    assert next(iter(shown)) == "data" and {"texts", "images", "model", "quick"} <= set(shown)


def test_pairs_are_read_and_audited(tmp_path: Path) -> None:
    pairs = planted(images=60, rate=0.2)
    count = len(pairs.wrong)
    columns = {
        "image": [f"{number:03d}.png" for number in pairs.image_of],
        "caption": [f"caption {number}" for number in range(count)],
    }
    PairTable.from_columns(columns).write_parquet(tmp_path / "pairs.parquet")
    table = pmpguard.read_pairs(tmp_path / "pairs.parquet")
    assert isinstance(table, PairTable) and len(table) == count
    texts, images = pairs.captions, pairs.images[pairs.image_of]  # one row per pair
    found = pmpguard.audit(table, texts=texts, images=images, bootstrap=20)
    low, high = found.noise_rate_interval or (1.0, 0.0)
    assert isinstance(found.issues, pa.Table) and len(found.issues) == count
    assert 0 <= low <= found.noise_rate <= high <= 1
    assert found.report(tmp_path / "report").is_file()
    assert isinstance(found.clean("drop"), PairTable)
    assert 3 <= len(repr(found).splitlines()) <= 8


def test_the_detector_judges_embeddings_of_any_two_encoders() -> None:
    pairs = planted(images=100, rate=0.3)
    images = np.hstack([pairs.images, np.zeros((100, 4)) + pairs.images[:, :4]])  # of other dimensions
    detector = pmpguard.NoiseDetector(bootstrap=20).fit(pairs.captions, images, image_of=pairs.image_of)
    assert detector.p_match.shape == pairs.wrong.shape and detector.p_match.dtype == np.float64
    assert detector.p_match[~pairs.wrong].mean() > detector.p_match[pairs.wrong].mean() + 0.5
    low, high = detector.noise_rate_interval
    assert 0 <= low <= detector.noise_rate <= high <= 1
    assert {each.shape for each in detector.evidence.values()} == {pairs.wrong.shape}
    assert all(isinstance(reason, str) for reason in detector.left_out)


def test_losses_are_modules_with_a_weight_per_pair() -> None:
    scores = torch.tensor([[0.9, 0.2], [0.6, 0.1]])
    weights = torch.tensor([1.0, 0.0])
    for name in ("InfoNCE", "AwarenessHinge", "Complementary"):
        loss = getattr(pmpguard.losses, name)(reduction="none")
        assert isinstance(loss, nn.Module)
        terms: Tensor = loss(scores, weights=weights)
        assert terms.shape == (2,) and float(terms[1]) == 0 and float(loss(scores)[1]) > 0
    teacher = pmpguard.losses.Distillation()(scores, scores.flip(0), weights=weights)
    assert float(teacher) > 0


def test_the_paper_in_three_files() -> None:
    generator = torch.Generator().manual_seed(0)
    words, regions = torch.randn(4, 5, 8, generator=generator), torch.randn(3, 6, 8, generator=generator)
    words, regions = nn.functional.normalize(words, dim=-1), nn.functional.normalize(regions, dim=-1)
    mask = torch.arange(5) < torch.tensor([[5], [3], [2], [4]])
    assert pmpguard.models.attention.awareness.awareness_scores(words, mask, regions, 0.1).shape == (4, 3)
    gated = pmpguard.models.attention.cross_gated.CrossGatedAttention(8)(words, mask, regions)
    assert gated.shape == (4, 3) and float(gated.abs().max()) <= 1 + 1e-5
    optimal_boundary = pmpguard.models.attention.boundary.optimal_boundary
    assert optimal_boundary(0.6, 0.1, 0.2, 0.1, alpha=1.0) == pytest.approx(0.4)
    assert optimal_boundary(0.6, 0.0, 0.2, 0.1) is None


def test_recall_mixture_and_noise() -> None:
    recall = pmpguard.evaluation.recall.retrieval_recall(np.eye(4), [0, 1, 2, 3], bootstrap=0)
    assert recall.mr == 100 and recall.i2t[0] == 100 and recall.t2i[0] == 100
    generator = np.random.default_rng(0)
    mismatched = generator.normal(0, 1, 4000)
    scores = np.concatenate([generator.normal(4, 1, 700), generator.normal(0, 1, 300)])
    mixture = pmpguard.detection.mixture.fit_match_mixture(scores, mismatched, bootstrap=0)
    assert mixture.match_rate == pytest.approx(0.7, abs=0.05) and mixture.p_match.shape == (1000,)
    table = PairTable.from_columns(
        {"image": [f"{n}.png" for n in range(40)], "caption": [f"caption {n}" for n in range(40)]}
    )
    corruption = pmpguard.noise.inject.corrupt_pairs(table, 0.25, 0, level="caption")
    changed = [old != new for old, new in zip(table.captions, corruption.table.captions, strict=True)]
    assert sum(changed) == 10
