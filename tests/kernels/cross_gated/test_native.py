"""The cosines of the function in C against the module in float64, and what happens without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.kernels.cross_gated import native as cross_gated_native
from pmpguard.kernels.cross_gated.native import TILE, compiled, native_gated_cosines
from pmpguard.kernels.packed_scoring import packed_gated_cosines
from pmpguard.models.attention.cross_gated import CrossGatedAttention

needs_compiler = pytest.mark.skipif(compiled() is None, reason="needs a C compiler")


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs take the function in C too, and nothing may fall back unseen."""

    def refuse(*_: object) -> Tensor:
        raise AssertionError("torch did the work")

    monkeypatch.setattr(cross_gated_native, "WORTH_COMPILING", 0)
    monkeypatch.setattr(cross_gated_native, "packed_gated_cosines", refuse)


@pytest.fixture
def compile_anew() -> Iterator[None]:
    cross_gated_native._compiled.cache_clear()
    yield
    cross_gated_native._compiled.cache_clear()


def unit(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(drawn, dim=-1).float()


def some_mask(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Random, with gaps; the first row is empty where there is more than one."""
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[:, 0] = True
    if rows > 1:
        mask[0] = False
    return mask


def trained(dim: int, spread: float = 0.5) -> CrossGatedAttention:
    torch.manual_seed(0)
    attention = CrossGatedAttention(dim)
    with torch.no_grad():
        for weight in attention.parameters():
            weight.add_(spread * torch.randn_like(weight))
    return attention


def exact(attention: CrossGatedAttention, words: Tensor, mask: Tensor, regions: Tensor) -> Tensor:
    with torch.no_grad():
        cosines = attention.double()(words.double(), mask, regions.double())
    attention.float()
    return cosines


@needs_compiler
@pytest.mark.parametrize("spread", [0.0, 0.5, 20.0], ids=["untrained", "trained", "saturated"])
@pytest.mark.parametrize(
    ("captions", "m", "images", "n", "d"),
    [(1, 1, 1, 1, 64), (7, 5, 6, 9, 64), (3, 24, 4, 49, 128), (2, 3, 2, 50, 512), (40, 4, 9, 3, 192)],
)
@pytest.mark.usefixtures("any_size")
def test_equals_the_module(captions: int, m: int, images: int, n: int, d: int, spread: float) -> None:
    attention = trained(d, spread)
    if spread > 1:  # the gates saturate, the attention stays soft enough for float32 to follow
        attention.attention.data = 10 * torch.eye(d)
    words, regions, mask = unit(captions, m, d, seed=1), unit(images, n, d, seed=2), some_mask(captions, m)
    found = native_gated_cosines(attention, words, mask, regions)
    assert found.dtype == torch.float32 and not found.requires_grad
    expected = exact(attention, words, mask, regions)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


@needs_compiler
@pytest.mark.parametrize("bias", [-1e4, -90.0, -80.0, 80.0, 90.0, 1e4])
@pytest.mark.usefixtures("any_size")
def test_gates_as_far_open_or_closed_as_can_be(bias: float) -> None:
    attention = CrossGatedAttention(64, gate_bias=bias)
    words, regions, mask = unit(4, 5, 64, seed=1), unit(3, 6, 64, seed=2), some_mask(4, 5)
    found = native_gated_cosines(attention, words, mask, regions)
    torch.testing.assert_close(found.double(), exact(attention, words, mask, regions), atol=2e-6, rtol=0)


@needs_compiler
@pytest.mark.usefixtures("any_size")
def test_padding_has_no_influence_even_when_it_is_nan() -> None:
    attention, words, regions, mask = (
        trained(64),
        unit(6, 5, 64, seed=1),
        unit(4, 7, 64, seed=2),
        some_mask(6, 5),
    )
    plain = native_gated_cosines(attention, words, mask, regions)
    wider = torch.cat([words.masked_fill(~mask[..., None], torch.nan), torch.full((6, 3, 64), torch.nan)], 1)
    wider_mask = torch.cat([mask, torch.zeros(6, 3, dtype=torch.bool)], 1)
    assert torch.equal(native_gated_cosines(attention, wider, wider_mask, regions), plain)
    assert not plain[0].any()  # no words


@needs_compiler
@pytest.mark.usefixtures("any_size")
def test_a_pair_does_not_depend_on_the_others_nor_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, words, regions, mask = (
        trained(64),
        unit(30, 6, 64, seed=1),
        unit(23, 7, 64, seed=2),
        some_mask(30, 6),
    )
    together = native_gated_cosines(attention, words, mask, regions)
    some_captions, some_images = torch.tensor([17, 3, 29]), torch.tensor([22, 5])
    alone = native_gated_cosines(attention, words[some_captions], mask[some_captions], regions[some_images])
    picked = together[some_captions][:, some_images]
    torch.testing.assert_close(alone, picked, atol=1e-6, rtol=0)
    monkeypatch.setattr(cross_gated_native, "BLOCK_WORDS", 7)
    monkeypatch.setattr(cross_gated_native, "BLOCK_PAIRS", 4)
    monkeypatch.setattr(cross_gated_native, "IMAGES_AT_ONCE", 10)
    in_small_blocks = native_gated_cosines(attention, words, mask, regions)
    torch.testing.assert_close(in_small_blocks, together, atol=1e-6, rtol=0)


@needs_compiler
@pytest.mark.usefixtures("any_size")
def test_half_precision_is_widened() -> None:
    attention, mask = trained(64), some_mask(5, 4)
    words, regions = unit(5, 4, 64, seed=1).bfloat16(), unit(3, 6, 64, seed=2).half()
    found = native_gated_cosines(attention, words, mask, regions)
    torch.testing.assert_close(found.double(), exact(attention, words, mask, regions), atol=2e-6, rtol=0)


@needs_compiler
@pytest.mark.usefixtures("any_size")
def test_runs_give_the_same_bits_whatever_the_number_of_threads() -> None:
    attention, words, regions, mask = (
        trained(64),
        unit(30, 6, 64, seed=1),
        unit(20, 7, 64, seed=2),
        some_mask(30, 6),
    )
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(native_gated_cosines(attention, words, mask, regions))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[1], results[2])


@needs_compiler
def test_ranks_of_a_job_that_is_large_enough_without_help(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, mask = CrossGatedAttention(64), some_mask(200, 4)
    words, regions = unit(200, 4, 64, seed=1), unit(100, 5, 64, seed=2)
    calls = []
    kernel = compiled()
    assert kernel is not None

    def watched(*arguments: int) -> None:
        calls.append(arguments)
        kernel(*arguments)

    monkeypatch.setattr(cross_gated_native, "_compiled", lambda: watched)
    found = native_gated_cosines(attention, words, mask, regions)
    assert calls
    expected = exact(attention, words, mask, regions)
    assert torch.equal(found[1:].argmax(1), expected[1:].argmax(1))


@pytest.mark.parametrize("missing", ["compiler", "source", "flag", "library"])
@pytest.mark.usefixtures("compile_anew")
def test_torch_does_the_work_when_nothing_can_be_compiled(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "compiler":
        monkeypatch.setattr(cross_gated_native.shutil, "which", lambda _: None)
    elif missing == "source":
        monkeypatch.setattr(cross_gated_native, "SOURCE", "not C")
    elif missing == "flag":
        monkeypatch.setattr(cross_gated_native, "FLAGS", ("-march=none-such", "-shared", "-fPIC"))
    else:  # compiled, but no shared library: nothing that can be loaded
        monkeypatch.setattr(cross_gated_native, "FLAGS", ("-c",))
    monkeypatch.setattr(cross_gated_native, "WORTH_COMPILING", 0)
    attention, words, regions, mask = (
        trained(64),
        unit(5, 4, 64, seed=1),
        unit(3, 6, 64, seed=2),
        some_mask(5, 4),
    )
    assert compiled() is None
    expected = packed_gated_cosines(attention, words, mask, regions)
    assert torch.equal(native_gated_cosines(attention, words, mask, regions), expected)


@pytest.mark.parametrize(("captions", "images", "dim"), [(5, 3, 64), (0, 3, 64), (5, 0, 64), (150, 150, 63)])
def test_few_pairs_and_odd_sizes_compile_nothing(
    captions: int, images: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("compiled for nothing")

    monkeypatch.setattr(cross_gated_native, "compiled", refuse)
    assert dim % TILE or captions * images < cross_gated_native.WORTH_COMPILING
    words, regions, mask = unit(captions, 2, dim), unit(images, 3, dim), some_mask(captions, 2)
    found = native_gated_cosines(CrossGatedAttention(dim), words, mask, regions)
    assert found.shape == (captions, images)


@needs_compiler
@pytest.mark.usefixtures("compile_anew")
def test_many_callers_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = cross_gated_native.subprocess.run

    def counted(*arguments: object, **options: object) -> object:
        runs.append(arguments)
        return run(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(cross_gated_native.subprocess, "run", counted)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: compiled(), range(4)))
    assert len(runs) == 1 and all(function is found[0] is not None for function in found)
