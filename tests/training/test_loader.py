"""Batches are functions of (seed, step): the same after a resume, and shared among ranks without a rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.data.images.sources import ImageSubset
from pmpguard.data.images.transforms import Augmentation
from pmpguard.models.retriever import Retriever
from pmpguard.training.batch_sampler import PairSampler, plan_batch
from pmpguard.training.distributed import World
from pmpguard.training.feature_cache import encode_texts
from pmpguard.training.loader import BatchLoader, DeviceBatch, TokenTable, batch_names, with_more_images
from pmpguard.training.loop import TrainingData, build_method
from pmpguard.training.packing import Words

CPU = torch.device("cpu")
DATA = training_data(*coloured_squares(copies=3))
STRONG = Augmentation(flip=True, rotate=True, crop_min=0.5, colour=0.2)


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return build_method(small_config(), len(DATA.train), DATA.train.captions).retriever


def loader(
    retriever: Retriever,
    data: TrainingData = DATA,
    augmentation: Augmentation = STRONG,
    world: World = World(),  # noqa: B008
    seed: int = 0,
    same_shapes: bool = False,
) -> BatchLoader:
    codes = data.train.image_codes, data.train.caption_codes
    sampler = PairSampler(*codes, 30, seed, captions_per_image=2)
    tokens = TokenTable.of(data.train, retriever, CPU)
    return BatchLoader(
        data.train, data.train_images, tokens, sampler, augmentation, seed, CPU, world,
        same_shapes=same_shapes,
    )  # fmt: skip


def equal(left: DeviceBatch, right: DeviceBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.tensors(), right.tensors(), strict=True))


def pair_words(batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of every pair of an unpacked batch."""
    assert isinstance(batch.texts, Words)
    return batch.texts.ids[batch.caption_of], batch.texts.mask[batch.caption_of]


def test_equal_captions_of_a_batch_are_read_once(retriever: Retriever) -> None:
    captions = DATA.train.captions
    same = DATA.train.with_column("caption", [captions[row // 2 * 2] for row in range(len(captions))])
    for batch in loader(retriever, replace(DATA, train=same)).batches(0, 0):
        assert isinstance(batch.texts, Words)
        used = batch.caption_of.unique()
        assert len(used) == len(batch.caption_keys.unique()) < len(batch.rows)
        assert len(batch.texts.ids) == -(-len(used) // 32) * 32


def test_draws_are_the_same_after_a_resume(retriever: Retriever) -> None:
    straight = list(loader(retriever).batches(1, 0))
    assert len(straight) == 8
    resumed = list(loader(retriever).batches(1, 5))
    assert len(resumed) == 3
    assert all(equal(left, right) for left, right in zip(straight[5:], resumed, strict=True))


def test_epochs_and_seeds_differ(retriever: Retriever) -> None:
    first, next_epoch = (next(loader(retriever).batches(epoch, 0)) for epoch in (0, 1))
    other_seed = next(loader(retriever, seed=1).batches(0, 0))
    assert not torch.equal(first.rows, next_epoch.rows)
    assert not torch.equal(first.rows, other_seed.rows)


def test_pixels_and_words_belong_to_the_rows(retriever: Retriever) -> None:
    batch = next(loader(retriever, augmentation=Augmentation(False, False, 1.0)).batches(0, 0))
    rows = batch.rows.numpy()
    assert torch.equal(batch.image_keys[batch.image_of], torch.from_numpy(DATA.train.image_codes[rows]))
    assert len(batch.image_keys) == len(set(batch.image_keys.tolist())) == 15  # two captions share an image
    own = next(DATA.train_images.batches([batch.image_keys.numpy()]))
    assert torch.equal(batch.images, own.float())
    ids, mask = retriever.tokenize([DATA.train.captions[row] for row in rows])
    own_ids, own_mask = pair_words(batch)
    width = ids.shape[1]
    assert torch.equal(own_mask[:, :width], mask) and not own_mask[:, width:].any()
    assert torch.equal(own_ids[:, :width][mask], ids[mask])


@pytest.mark.parametrize("size", [2, 3])
def test_the_shares_of_all_ranks_are_the_whole(retriever: Retriever, size: int) -> None:
    whole = list(loader(retriever).batches(0, 2))
    ranks = [list(loader(retriever, world=World(rank, size)).batches(0, 2)) for rank in range(size)]
    for number, batch in enumerate(whole):
        shares = [own[number] for own in ranks]
        assert torch.equal(torch.cat([share.images for share in shares]), batch.images)
        words = [ids[mask] for ids, mask in map(pair_words, shares)]
        whole_ids, whole_mask = pair_words(batch)
        assert torch.equal(torch.cat(words), whole_ids[whole_mask])
        for share in shares:
            for name in ("image_of", "image_keys", "caption_keys", "rows"):
                assert torch.equal(getattr(share, name), getattr(batch, name)), name


def test_a_image_whose_caption_names_a_direction_is_neither_turned_nor_flipped(
    retriever: Retriever,
) -> None:
    captions = DATA.train.captions
    marked = [number % 6 == 0 for number in range(len(captions))]  # one of the two captions of every third
    told = [f"{text} on the left" if mark else text for text, mark in zip(captions, marked, strict=True)]
    data = replace(DATA, train=DATA.train.with_column("caption", told))
    turning = Augmentation(flip=True, rotate=True, crop_min=1.0)
    kept, free, changed = 0, 0, 0
    for batch in loader(retriever, data, turning).batches(0, 0):
        originals = next(data.train_images.batches([batch.image_keys.numpy()])).float()
        for key, before, after in zip(batch.image_keys.tolist(), originals, batch.images, strict=True):
            if any(np.array(marked)[data.train.image_codes == key]):
                assert torch.equal(before, after)
                kept += 1
            else:
                free += 1
                changed += not torch.equal(before, after)
    assert kept > 30 and changed > 0.7 * free > 0  # seven of eight on average


def test_captions_are_cut_to_the_longest_of_the_batch_in_few_widths(retriever: Retriever) -> None:
    tokens = TokenTable.of(DATA.train, retriever, CPU)
    short = int(tokens.lengths.argmin())
    words = tokens.padded(np.array([short]))
    ids, mask = words.ids, words.mask
    assert ids.shape[1] == min(tokens.ids.shape[1], -(-int(tokens.lengths[short]) // 8) * 8)
    assert int(mask.sum()) == tokens.lengths[short]


def test_an_error_names_the_pairs_of_a_batch() -> None:
    assert batch_names(DATA.train, [0, 2], most=8) == "0, 2"
    assert batch_names(DATA.train, np.arange(20), most=3) == "0, 1, 2 ..."


def test_with_same_shapes_every_batch_can_be_replayed(retriever: Retriever) -> None:
    """Rows that come to 30 pairs with different numbers of images, as when some captions are left out."""
    kept = np.random.default_rng(0).random(len(DATA.train)) < 0.6
    some = DATA.train.filter(kept)
    data = replace(DATA, train=some, train_images=ImageSubset(DATA.train_images, np.unique(
        DATA.train.image_codes[kept], return_index=False)))  # fmt: skip
    plain, filled = (list(loader(retriever, data, same_shapes=same).batches(2, 0)) for same in (False, True))
    assert len({tuple(t.shape for t in batch.tensors()) for batch in plain}) > 1
    assert len({tuple(t.shape for t in batch.tensors()) for batch in filled}) == 1
    for own, more in zip(plain, filled, strict=True):
        count = len(own.image_keys)
        assert torch.equal(own.rows, more.rows) and torch.equal(own.image_of, more.image_of)
        assert torch.equal(own.image_keys, more.image_keys[:count])
        assert len(more.image_keys.unique()) == len(more.image_keys)  # no image twice
        assert int(more.image_of.max()) < count  # negatives only
        assert torch.equal(pair_words(own)[1].sum(1), pair_words(more)[1].sum(1))


def test_pairs_that_come_more_often_make_few_new_shapes(retriever: Retriever) -> None:
    """Verdicts change from epoch to epoch; the images of a batch are rounded up so that most stay alike."""
    feeding, draw = loader(retriever, same_shapes=True), np.random.default_rng(0)
    pairs, kinds = len(DATA.train), set()
    for epoch in range(2, 8):
        kept = draw.permutation(pairs)[: pairs // 3 - epoch]
        repeats = np.zeros(pairs, dtype=np.int64)
        repeats[kept] = 3
        repeats[np.setdiff1d(np.arange(pairs), kept)[: pairs - 3 * len(kept)]] = 1
        feeding.sampler.visit(repeats)
        batches = list(feeding.batches(epoch, 0))
        fed = np.bincount(np.concatenate([batch.rows.numpy() for batch in batches]), minlength=pairs)
        assert (fed <= repeats).all() and fed.sum() == len(batches) * 30
        assert len({batch.kind for batch in batches}) == 1
        kinds.add(batches[0].kind)
    assert len(kinds) <= 2
    feeding.sampler.visit(None)
    rows = torch.cat([batch.rows for batch in feeding.batches(2, 0)])
    assert len(rows.unique()) == len(rows)


def test_every_batch_keeps_to_the_promised_number_of_long_captions(retriever: Retriever) -> None:
    """Also where several pairs have the same caption, and in epochs after those that were looked at."""
    draw = np.random.default_rng(0)
    words = ["red", "green", "blue", "square", "big", "small", "bright", "dark", "plain", "wide"]
    lengths = draw.integers(1, 25, len(DATA.train))
    told = [" ".join(draw.choice(words, length)) for length in lengths]
    told[1::2] = told[::2]  # twice each
    data = replace(DATA, train=DATA.train.with_column("caption", told))
    kinds = set()
    for batches in (loader(retriever, data, same_shapes=True).batches(epoch, 0) for epoch in range(4)):
        for batch in batches:
            kinds.add(batch.kind)
            encoded = encode_texts(retriever, batch.texts).chosen(batch.caption_of)
            counted = encoded.mask.sum(1)  # (T,)
            assert batch.longer_than is not None
            for limit, most in batch.longer_than:
                assert int((counted > limit).sum()) <= most
            assert dict(batch.longer_than)[16] < len(batch.rows)
    assert len(kinds) <= 2


def test_long_captions_are_not_counted_where_ranks_share_a_batch(retriever: Retriever) -> None:
    batch = next(loader(retriever, world=World(0, 2), same_shapes=True).batches(0, 0))
    assert batch.longer_than is None


def test_a_step_is_replayed_only_by_steps_that_promise_the_same_lengths(retriever: Retriever) -> None:
    batch = next(loader(retriever, same_shapes=True).batches(0, 0))
    assert batch.longer_than is not None
    assert batch.cloned().kind == batch.kind
    (limit, count), *others = batch.longer_than
    other = replace(batch, longer_than=((limit, count + 1), *others))
    assert other.kind != batch.kind and other.cloned().kind == other.kind
    assert all(isinstance(tensor, torch.Tensor) for tensor in other.tensors())


def test_batches_of_a_small_set_stay_as_they_are_where_no_other_image_is_left() -> None:
    plans = [plan_batch(np.arange(4), np.array([0, 1, 2, 2]), np.arange(4))]
    assert with_more_images(plans, least=9)[0].images.tolist() == [0, 1, 2]
