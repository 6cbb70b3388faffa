"""Heads against versions written as loops, and what every head promises."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, relu

import pmpguard
from pmpguard.errors import ConfigError
from pmpguard.models.config import CrossGatedConfig, HeadConfig, preset
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import unit
from pmpguard.models.heads.attention import Attention, AttentionLayer, GatedAttention
from pmpguard.models.heads.dove import DoveHead
from pmpguard.models.heads.head import Head
from pmpguard.models.heads.pir import PirHead, most_relevant
from pmpguard.models.heads.registry import build_head
from pmpguard.models.heads.swan import SwanHead
from pmpguard.models.retriever import Retriever

CAPTIONS = ["a round pond", "two white planes near a long runway", "a farm", "red roofs beside the river"]
NAMES = ("pir", "swan", "dove")
DIM = 16


def items(count, fragments, seed=0, shortest=None):
    """Random unit vectors in float64; `shortest` lets items be of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, fragments + 1, DIM, generator=generator, dtype=torch.float64)
    lengths = torch.full((count,), fragments)
    if shortest is not None:
        lengths = torch.randint(shortest, fragments + 1, (count,), generator=generator)
    return Encoded(unit(vectors[:, 0]), unit(vectors[:, 1:]), torch.arange(fragments) < lengths[:, None])


def head(name, dropout=0.0):
    torch.manual_seed(1)
    built = build_head(HeadConfig(name, attention_heads=4, dropout=dropout, scenes=5), DIM)
    return built.double()


def retriever(name="none", **changes):
    torch.manual_seed(0)
    config = preset("tiny", dim=32, cross_gated=CrossGatedConfig(use=False), ranking="pooled")
    config = dataclasses.replace(config, head=HeadConfig(name), **changes)
    return Retriever.create(config, CAPTIONS).eval()


def pixels(count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8, generator=generator)


# ------------------------------------------------------------------------------------------ naive versions


def naive_attention(module, queries, keys, values, allowed):
    """One item: queries (q, d), keys and values (k, d), allowed(i, j) -> (q, d) before any merging layer."""
    width = queries.shape[-1] // module.heads
    result = torch.zeros_like(queries)
    for h, i in itertools.product(range(module.heads), range(len(queries))):
        part = slice(h * width, (h + 1) * width)
        seen = [j for j in range(len(keys)) if allowed(i, j)]
        logits = torch.stack([queries[i, part] @ keys[j, part] for j in seen]) / math.sqrt(width)
        result[i, part] = sum(w * values[j, part] for w, j in zip(logits.softmax(0), seen, strict=True))
    return result


def naive_multi_head(module, queries, states, allowed):
    keys, values = module.keys(states), module.values(states)
    return module.merge(naive_attention(module, module.queries(queries), keys, values, allowed))


def naive_layer(layer, base, queries, states, allowed):
    dim = base.shape[-1]
    norm = layer.after_attention
    base = layer_norm(
        base + naive_multi_head(layer.attention, queries, states, allowed), (dim,), norm.weight, norm.bias
    )
    first, wide_norm, _, last = layer.feed_forward
    wide = gelu(layer_norm(first(base), (2 * dim,), wide_norm.weight, wide_norm.bias))
    norm = layer.after_feed_forward
    return layer_norm(base + last(wide), (dim,), norm.weight, norm.bias)


def naive_gated(module, states, allowed):
    queries, keys, values = module.queries_keys_values(states).chunk(3, -1)
    width = states.shape[-1] // module.heads
    gated_queries, gated_keys = torch.zeros_like(queries), torch.zeros_like(keys)
    for h, i in itertools.product(range(module.heads), range(len(states))):
        part = slice(h * width, (h + 1) * width)
        product = module.query_part(queries[i, part]) * module.key_part(keys[i, part])
        gates = 1 / (1 + torch.exp(-module.gates(product)))
        gated_queries[i, part] = queries[i, part] * gates[:width]
        gated_keys[i, part] = keys[i, part] * gates[width:]
    return naive_attention(module, gated_queries, gated_keys, values, allowed)


def real(mask_row):
    return lambda i, j: bool(mask_row[j])


def test_attention_against_loops():
    torch.manual_seed(0)
    module = Attention(DIM, 4).double()
    states, asked = items(3, 6, shortest=1), items(3, 2, seed=1).fragments
    found = module(asked, states.fragments, states.mask)
    for n in range(3):
        expected = naive_multi_head(module, asked[n], states.fragments[n], real(states.mask[n]))
        torch.testing.assert_close(found[n], expected)


def test_attention_layer_adds_to_its_base():
    torch.manual_seed(0)
    module = AttentionLayer(DIM, 4).double()
    states, base = items(2, 5, shortest=2), items(2, 5, seed=1).fragments
    guide = base[:, :1]
    found = module(base, guide, states.fragments, states.mask)
    for n in range(2):
        expected = naive_layer(module, base[n], guide[n], states.fragments[n], real(states.mask[n]))
        torch.testing.assert_close(found[n], expected)


def test_gated_attention_against_loops():
    torch.manual_seed(0)
    module = GatedAttention(DIM).double()
    words = items(3, 5, shortest=1)
    found = module(words.fragments, words.mask)
    for n in range(3):
        torch.testing.assert_close(found[n], naive_gated(module, words.fragments[n], real(words.mask[n])))


# ------------------------------------------------------------------------------------------------------ PIR


def naive_guided(layer, states, mask_row, guide):
    attended = naive_layer(layer.alone, states, states, states, real(mask_row))
    return naive_layer(layer.guided, attended, layer.map_guide(guide), attended, real(mask_row))


def test_pir_against_loops():
    module: PirHead = head("pir")
    images, texts = items(3, 9), items(3, 6, seed=2, shortest=1)
    found_images, found_texts = module.images(images), module.texts(texts)
    stretch = math.sqrt(DIM)
    for n in range(3):
        regions = images.fragments[n]
        mean = sum(regions) / len(regions)
        scores = module.scenes(stretch * mean / mean.norm())
        instruction = module.instruct(scores.exp() / scores.exp().sum())
        tokens = stretch * torch.stack([images.pooled[n], *regions])
        order = (tokens @ instruction).argsort(descending=True)
        states = tokens[order[:8]]  # 0.8 of 10
        for layer in module.image_layers:
            states = naive_guided(layer, states, [True] * 8, instruction[None])
        expected = stretch * images.pooled[n] + module.image_adjustment(states[0])
        torch.testing.assert_close(found_images.pooled[n], expected / expected.norm())

        states = stretch * torch.stack([texts.pooled[n], *texts.fragments[n]])
        for layer in module.text_layers:
            states = naive_guided(layer, states, [True, *texts.mask[n]], states)
        expected = stretch * texts.pooled[n] + module.text_adjustment(states[0])
        torch.testing.assert_close(found_texts.pooled[n], expected / expected.norm())


def test_the_most_relevant_tokens_come_first_and_masked_ones_last():
    tokens = torch.tensor([[[1.0, 0], [3, 0], [2, 0], [9, 0], [-1, 0]]])
    mask = torch.tensor([[True, True, True, False, True]])
    chosen = most_relevant(tokens, mask, torch.tensor([[[1.0, 5.0]]]), 0.5)
    assert chosen.tolist() == [[1, 2, 0]]
    assert most_relevant(tokens, mask, torch.tensor([[[1.0, 5.0]]]), 1.0).tolist() == [[1, 2, 0, 4, 3]]


def test_retrieval_does_not_teach_the_scene_prior_nor_the_prior_the_encoder():
    module, images = head("pir"), items(3, 9)
    images.fragments.requires_grad_()
    module.images(images).pooled.sum().backward()
    assert module.scenes.weight.grad is None and module.instruct.weight.grad.abs().sum() > 0
    assert images.fragments.grad.abs().sum() > 0
    images.fragments.grad = None
    module.scene_logits(images).sum().backward()
    assert module.scenes.weight.grad.abs().sum() > 0 and images.fragments.grad is None


# ----------------------------------------------------------------------------------------------------- SWAN


def naive_two_layers(network, states):
    return network[3](relu(network[0](states)))


def test_swan_images_against_loops():
    module: SwanHead = head("swan")
    images = items(2, 16)
    found = module.images(images)
    detail = module.detail
    for n in range(2):
        grid = math.sqrt(DIM) * images.fragments[n].reshape(4, 4, DIM)
        seen = torch.zeros(16, DIM, dtype=torch.float64)
        first = 0
        for convolution in detail.neighbourhoods:
            reach, channels = convolution.kernel_size[0] // 2, convolution.out_channels
            for y, x in itertools.product(range(4), range(4)):
                total = convolution.bias.clone()
                for dy, dx in itertools.product(range(-reach, reach + 1), repeat=2):
                    if 0 <= y + dy < 4 and 0 <= x + dx < 4:
                        total += convolution.weight[:, :, reach + dy, reach + dx] @ grid[y + dy, x + dx]
                seen[4 * y + x, first : first + channels] = total
            first += channels
        assert first == DIM
        states = relu(layer_norm(seen, (DIM,), detail.norm.weight, detail.norm.bias))
        states = relu(detail.mix(states))
        states = naive_layer(detail.relate, states, states, states, lambda i, j: True)
        salience = torch.stack([detail.weigh(state)[0] for state in states]).exp()
        local = sum(s * state for s, state in zip(salience / salience.sum(), states, strict=True))
        whole = naive_two_layers(module.filter_whole, grid.reshape(16, DIM).mean(0))
        expected = naive_two_layers(module.aggregate, torch.cat([local, whole]))
        torch.testing.assert_close(found.pooled[n], expected / expected.norm())


def test_swan_captions_against_loops():
    module: SwanHead = head("swan")
    texts = items(4, 7, shortest=1)
    found, enhance = module.texts(texts), module.enhance
    for n in range(4):
        words = math.sqrt(DIM) * texts.fragments[n][texts.mask[n]]  # (m, d), real ones only
        attended = naive_gated(enhance.gated, words, lambda i, j: True)
        states = list(words + layer_norm(attended, (DIM,), enhance.norm.weight, enhance.norm.bias))
        for length, join, norm in zip((2, 3), enhance.join, enhance.phrase_norms, strict=True):
            for start in range(0, len(words), length):
                total = join.bias.clone()
                for k in range(length):
                    if start + k < len(words):
                        total += join.weight[:, :, k] @ words[start + k]
                states.append(relu(layer_norm(total, (DIM,), norm.weight, norm.bias)))
        expected = sum(state + naive_two_layers(enhance.refine, state) for state in states)
        torch.testing.assert_close(found.pooled[n], expected / expected.norm())


# ----------------------------------------------------------------------------------------------------- DOVE


def test_dove_captions_against_loops():
    module: DoveHead = head("dove")
    texts = items(4, 6, shortest=1)
    found, flows = module.texts(texts), module.flows
    for n in range(4):
        words = math.sqrt(DIM) * texts.fragments[n][texts.mask[n]]
        ahead = words + naive_gated(flows.forwards, words, lambda i, j: j <= i)
        back = words + naive_gated(flows.backwards, words, lambda i, j: j >= i)
        crossed = ahead * flows.admit_forwards(back).sigmoid() + back * flows.admit_backwards(ahead).sigmoid()
        mixed = words + naive_two_layers(flows.combine, crossed)
        mixed = layer_norm(mixed, (DIM,), flows.norm.weight, flows.norm.bias)
        pooled = math.sqrt(DIM) * texts.pooled[n] + module.gather(mixed.mean(0))
        torch.testing.assert_close(found.pooled[n], pooled / pooled.norm())
        torch.testing.assert_close(found.fragments[n][texts.mask[n]], unit(mixed))


def test_dove_scores_against_guided_captions_formed_one_by_one():
    module: DoveHead = head("dove")
    texts, images = items(4, 6, shortest=1), items(3, 9, seed=5)
    found, stretch = module.score(texts, images), math.sqrt(DIM)
    for t, i in itertools.product(range(4), range(3)):
        regions, whole = stretch * images.fragments[i], stretch * images.pooled[i : i + 1]
        fused = naive_layer(module.fuse, whole, whole, regions, lambda i, j: True)[0]
        mean = images.fragments[i].mean(0)
        asked = module.ask(stretch * mean / mean.norm())
        words = stretch * texts.fragments[t][texts.mask[t]]
        logits = torch.stack([module.offer(word) @ asked for word in words]) / stretch
        guided = stretch * texts.pooled[t]
        for weight, word in zip(logits.softmax(0), words, strict=True):
            guided = guided + weight * module.give(word)
        expected = (guided @ fused) / (guided.norm() * fused.norm())
        assert found[t, i].item() == pytest.approx(expected.item(), abs=1e-9)


def test_dove_scores_are_differentiable():
    module = head("dove")
    texts, images = items(2, 3, shortest=2), items(2, 4, seed=5)

    def score(words, regions):
        return module.score(
            Encoded(texts.pooled, words, texts.mask), Encoded(images.pooled, regions, images.mask)
        )

    words, regions = texts.fragments.requires_grad_(), images.fragments.requires_grad_()
    assert torch.autograd.gradcheck(score, (words, regions))


def test_independent_modalities_are_scored_at_chance():
    """A score in which a caption carries the image it is compared with would find every label."""
    module = head("dove")
    hits = []
    for seed in range(20):
        texts, images = items(40, 6, seed=2 * seed), items(40, 9, seed=2 * seed + 1)
        hits.append((module.score(texts, images).argmax(1) == torch.arange(40)).double().mean())
    assert torch.stack(hits).mean() < 0.07  # chance is 0.025


# ----------------------------------------------------------------------------------------------- every head


@pytest.mark.parametrize("name", NAMES)
def test_neither_the_batch_nor_padding_changes_an_item(name):
    module = head(name)
    images, texts = items(4, 9), items(4, 6, shortest=1)
    padded = Encoded(
        texts.pooled,
        torch.cat(
            [texts.fragments.masked_fill(~texts.mask[..., None], 7.0), torch.full((4, 5, DIM), 3.0)], 1
        ),
        torch.nn.functional.pad(texts.mask, (0, 5)),
    )
    whole_images, whole_texts, wide = module.images(images), module.texts(texts), module.texts(padded)
    for n in range(4):
        rows = slice(n, n + 1)
        torch.testing.assert_close(module.images(images[rows]).pooled[0], whole_images.pooled[n])
        length = int(texts.mask[n].sum())
        alone = Encoded(texts.pooled[rows], texts.fragments[rows, :length], texts.mask[rows, :length])
        alone = module.texts(alone)
        for found in (whole_texts, wide):
            torch.testing.assert_close(found.pooled[n], alone.pooled[0])
            torch.testing.assert_close(found.fragments[n, :length], alone.fragments[0])
    torch.testing.assert_close(
        module.score(whole_texts, whole_images)[1:3, 2:], module.score(wide[1:3], whole_images[2:])
    )


@pytest.mark.parametrize("name", NAMES)
def test_unit_vectors_and_gradients_for_every_weight(name):
    module = head(name, dropout=0.1).train()
    images, texts = module.images(items(4, 9)), module.texts(items(4, 6, shortest=1))
    for encoded in (images, texts):
        torch.testing.assert_close(encoded.pooled.norm(dim=-1), torch.ones(4, dtype=torch.float64))
        lengths = encoded.fragments[encoded.mask].norm(dim=-1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    module.score(texts, images).square().sum().backward()
    idle = {key for key, weight in module.named_parameters() if weight.grad is None}
    assert idle == ({"scenes.weight", "scenes.bias"} if name == "pir" else set())


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_keeps_its_head(name, tmp_path):
    ranking = "head" if name == "dove" else "pooled"
    model = retriever(name, ranking=ranking, multi_scale=name != "pir")
    model.save(tmp_path / "model")
    loaded = pmpguard.load(tmp_path / "model")
    texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels())
    same_texts, same_images = loaded.encode_texts(CAPTIONS), loaded.encode_images(pixels())
    assert torch.equal(texts.pooled, same_texts.pooled) and torch.equal(images.pooled, same_images.pooled)
    assert torch.equal(model.score(texts, images), loaded.score(same_texts, same_images))
    again = model.project_images(model.image_tokens(pixels()))
    assert torch.equal(again.pooled, images.pooled)
    assert any(key.startswith("head.") for key in loaded.state_dict())


def test_without_a_head_the_model_is_what_the_encoders_are():
    model = retriever()
    assert model.head is None and model.adapters is None
    assert not [key for key in model.state_dict() if key.startswith(("head", "adapters"))]
    images = model.image_encoder(pixels())
    assert torch.equal(model.encode_images(pixels()).pooled, images.pooled)
    texts = model.text_encoder(*model.tokenize(CAPTIONS))
    assert torch.equal(model.encode_texts(CAPTIONS).fragments, texts.fragments)
    changed = retriever("pir")
    for key, weight in model.state_dict().items():  # a head draws its weights after the encoders have theirs
        assert torch.equal(weight, changed.state_dict()[key]), key


def test_head_scores_come_in_chunks(monkeypatch):
    model = retriever("dove", ranking="head", multi_scale=True)
    texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels())
    whole = model.head.score(texts, images)
    monkeypatch.setattr(DoveHead, "floats_per_pair", lambda *_: 1 << 40)  # one pair at a time
    torch.testing.assert_close(model.score(texts, images), whole)
    torch.testing.assert_close(Head().score(texts, images), model.score(texts, images, "pooled"))


def test_impossible_heads_are_refused():
    with pytest.raises(ConfigError, match="needs a head"):
        preset("tiny", ranking="head")
    with pytest.raises(ConfigError, match="12 cannot be split among 8"):
        preset("tiny", dim=12, head=HeadConfig("swan"))
    with pytest.raises(ConfigError, match=r"head\.keep is 0\.0"):
        preset("tiny", head=HeadConfig("pir", keep=0.0))
    model = retriever()
    with pytest.raises(ConfigError, match="needs a head"):
        model.score(model.encode_texts(CAPTIONS), model.encode_images(pixels()), "head")
