"""The whole model: encode, score, explain, save and load."""

import dataclasses
import json
import math
import pickle
import resource
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import pmpguard
from pmpguard.errors import ConfigError, DataError, ModelError, PmpguardError
from pmpguard.files import write_json, write_manifest
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.cross_gated import ALIGNED
from pmpguard.models.config import (
    AwarenessConfig,
    CrossGatedConfig,
    RetrieverConfig,
    preset,
)
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders import image as image_encoder
from pmpguard.models.encoders import text as text_encoder
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.retriever import Retriever
from pmpguard.models.tokenizer import word_tokenizer
from pmpguard.training.parameter_groups import parameter_groups

CAPTIONS = ["a round pond", "two white planes near a long runway", "a farm", "red roofs beside the river"]
SMALL = preset("tiny", dim=32)


def retriever(config=SMALL, seed=0):
    torch.manual_seed(seed)
    return Retriever.create(config, CAPTIONS).eval()


def pixels(count=4, size=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def as_pil(images):
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


def changed(config=SMALL, **changes):
    return dataclasses.replace(config, **changes)


def assert_same(left: Encoded, right: Encoded):
    for name in ("pooled", "fragments", "mask"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name


# ---------------------------------------------------------------------------------------------------- encode


def test_pil_images_and_uint8_tensors_agree():
    model, images = retriever(), pixels()
    assert_same(model.encode_images(images), model.encode_images(as_pil(images)))


def test_float_images_are_between_0_and_1():
    model, images = retriever(), pixels()
    expected = model.encode_images(images)
    torch.testing.assert_close(
        model.encode_images(images / 255).fragments, expected.fragments, atol=1e-5, rtol=0
    )
    with pytest.raises(DataError, match="0 and 1"):
        model.encode_images(model.normalise(images))
    with pytest.raises(DataError, match="0 and 1"):
        model.encode_images(torch.full((1, 3, 64, 64), math.nan))


def test_other_sizes_are_resized():
    model = retriever()
    large = torch.from_numpy(np.linspace(0, 255, 100 * 90 * 3).astype(np.uint8).reshape(1, 100, 90, 3))
    large = large.permute(0, 3, 1, 2)
    from_tensor, from_pil = model.encode_images(large), model.encode_images(as_pil(large))
    assert from_tensor.fragments.shape == (1, 16, 32)
    assert (from_tensor.pooled @ from_pil.pooled.T).item() > 0.999  # two bicubic filters, rounded


def test_batch_size_changes_nothing_and_training_mode_is_restored():
    model, images = retriever().train(), pixels(5)
    texts = [*CAPTIONS, "a pond"]
    one, all_ = model.encode_images(images, batch_size=1), model.encode_images(images)
    torch.testing.assert_close(one.fragments, all_.fragments)
    one, all_ = model.encode_texts(texts, batch_size=2), model.encode_texts(texts)
    torch.testing.assert_close(one.pooled, all_.pooled)
    assert torch.equal(one.mask, all_.mask)
    torch.testing.assert_close(one.fragments[one.mask], all_.fragments[all_.mask])
    assert model.training and not one.pooled.requires_grad


def test_dropout_hides_features_in_training_alone():
    model, plain = retriever(changed(dropout=0.5)), retriever()
    images = pixels()
    assert_same(model.encode_images(images), plain.encode_images(images))
    model.train()
    tokens = Encoded(torch.ones(200, 128), torch.ones(200, 3, 128), torch.ones(200, 3, dtype=torch.bool))
    thinned = model._thinned(tokens)
    for part in (thinned.pooled, thinned.fragments):
        assert set(part.unique().tolist()) == {0.0, 2.0}
        assert abs(float((part == 0).float().mean()) - 0.5) < 0.02
    plain.train()
    assert plain._thinned(tokens) is tokens
    for share in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="dropout is"):
            changed(dropout=share)


def test_training_and_use_compute_the_same():
    model, images = retriever(), pixels()
    assert_same(model.forward_images(images), model.encode_images(images))
    assert_same(model.forward_images(model.normalise(images)), model.encode_images(images))
    assert_same(model.forward_texts(*model.tokenize(CAPTIONS)), model.encode_texts(CAPTIONS))
    assert_same(model.project_images(model.image_tokens(images)), model.encode_images(images))
    assert_same(
        model.project_texts(model.text_tokens(*model.tokenize(CAPTIONS))), model.encode_texts(CAPTIONS)
    )


def test_long_captions_are_cut_at_max_words():
    model = retriever(changed(max_tokens=3))
    assert model.tokenize(CAPTIONS)[0].shape == (4, 3)
    assert_same(model.encode_texts(["two white planes near"]), model.encode_texts(["two white planes"]))


def test_nothing_and_nonsense_are_refused():
    model = retriever()
    with pytest.raises(DataError, match="no images"):
        model.encode_images([])
    with pytest.raises(DataError, match="no texts"):
        model.encode_texts([])
    with pytest.raises(DataError, match="text 300 has no words"):
        model.encode_texts(["a pond"] * 300 + [" "])
    with pytest.raises(DataError, match=r"shape \(2, 1, 64, 64\)"):
        model.encode_images(torch.zeros(2, 1, 64, 64))


# ----------------------------------------------------------------------------------------------------- score


def test_every_ranking_is_the_sum_it_says():
    model = retriever(changed(ranking_weight=0.3))
    texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels(3))
    score = {
        ranking: model.score(texts, images, ranking)
        for ranking in ("awareness", "gated", "awareness+gated", "pooled", "pooled+awareness")
    }
    boundary = float(model.boundary.value(train=False))
    expected = awareness_scores(texts.fragments, texts.mask, images.fragments, boundary)
    torch.testing.assert_close(score["awareness"], expected, atol=1e-5, rtol=1e-5)
    gated = model.cross_gated_attention(texts.fragments, texts.mask, images.fragments)
    torch.testing.assert_close(score["gated"], gated, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(score["pooled"], texts.pooled @ images.pooled.T)
    torch.testing.assert_close(score["awareness+gated"], score["awareness"] + 0.3 * score["gated"])
    torch.testing.assert_close(score["pooled+awareness"], score["awareness"] + 0.3 * score["pooled"])
    torch.testing.assert_close(model.score(texts, images), score["awareness"])
    assert score["awareness"].shape == (4, 3) and score["awareness"].std() > 0


@pytest.mark.parametrize("direction", ["words", "both"])
def test_gated_input_scores_each_pair_with_its_own_fragments(direction):
    model = retriever(changed(awareness=AwarenessConfig(input="gated", direction=direction)))
    texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels(3))
    scores = model.score(texts, images)
    for row in range(4):
        for column in range(3):
            text, image = texts[[row]], images[[column]]
            gated = model.cross_gated_attention.gate(text.fragments, text.mask, image.fragments, axes=ALIGNED)
            expected = awareness_scores(
                torch.nn.functional.normalize(gated.words, dim=-1),
                text.mask,
                torch.nn.functional.normalize(gated.regions, dim=-1),
                0.0,
                direction=direction,
            )
            torch.testing.assert_close(scores[row, column], expected[0, 0], atol=1e-5, rtol=1e-5)


def test_the_boundary_at_test_is_the_configured_one():
    scores = []
    for at_test in ("safe", "t_k"):
        model = retriever(changed(awareness=AwarenessConfig(at_test=at_test)))
        model.boundary.t.fill_(0.5)
        model.boundary.words_seen.fill_(1000)
        model.boundary.mass.fill_(1)
        model.boundary.moments.copy_(torch.tensor([0.4, 0.17, 0.1, 0.02]))  # mu+ 0.4, sigma+ 0.1
        texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels(3))
        boundary = {"safe": 0.1, "t_k": 0.5}[at_test]
        expected = awareness_scores(texts.fragments, texts.mask, images.fragments, boundary)
        scores.append(model.score(texts, images))
        torch.testing.assert_close(scores[-1], expected, atol=1e-5, rtol=1e-5)
    assert (scores[0] - scores[1]).abs().max() > 0.01


@pytest.mark.parametrize("input_", ["raw", "gated"])
@pytest.mark.parametrize("ranking", ["awareness", "gated", "awareness+gated", "pooled", "pooled+awareness"])
def test_unrelated_images_and_captions_retrieve_at_chance(ranking, input_):
    """Untrained weights know nothing; a score that leaked the pairing would find every partner."""
    count, hits = 60, 0
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        words = [f"w{number}" for number in range(200)]
        draws = torch.randint(0, 200, (count, 8), generator=generator).tolist()
        captions = [" ".join(words[place] for place in row) for row in draws]
        torch.manual_seed(seed)
        model = Retriever.create(changed(awareness=AwarenessConfig(input=input_)), captions).eval()
        texts, images = model.encode_texts(captions), model.encode_images(pixels(count, seed=seed))
        scores = model.score(texts, images, ranking)
        own = scores.diagonal()
        hits += int(
            (scores.argmax(1) == torch.arange(count)).sum() + (scores.argmax(0) == torch.arange(count)).sum()
        )
        assert (own.mean() - scores.mean()).abs() < 4 * scores.std() / count**0.5
    assert hits <= 18  # 6 expected of 360; more than 18 has a probability below 1e-4


# --------------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize("input_", ["raw", "gated"])
def test_the_words_evidence_adds_up_to_the_score(input_):
    model = retriever(changed(awareness=AwarenessConfig(input=input_)))
    model.boundary.t.fill_(0.2)
    model.boundary.at_test = "t_k"
    image = pixels(1)[0]
    caption = "Two white planes, near a pond."
    explanation = model.explain(caption, image)
    score = model.score(model.encode_texts([caption]), model.encode_images(image[None])).item()
    assert [word.word for word in explanation.words] == ["Two", "white", "planes", "near", "a", "pond"]
    assert explanation.score == pytest.approx(score, abs=1e-5) and explanation.boundary == pytest.approx(0.2)
    assert sum(word.positive + word.negative for word in explanation.words) == pytest.approx(score, abs=1e-5)
    assert all(word.negative <= 0 and word.regions.shape == (4, 4) for word in explanation.words)
    assert "planes" in explanation.as_text() and len(explanation.as_text().splitlines()) == 7


def test_explanation_shows_the_regions_of_each_word():
    model = retriever()
    image = pixels(1)
    explanation = model.explain("round pond", as_pil(image)[0])
    words, regions = model.encode_texts(["round pond"]), model.encode_images(image)
    cosines = (words.fragments[0] @ regions.fragments[0].T).view(2, 4, 4)
    for word, expected in zip(explanation.words, cosines, strict=True):
        torch.testing.assert_close(word.regions, expected)


# --------------------------------------------------------------------------------------------- save and load


def test_round_trip_is_bit_equal(tmp_path):
    model = retriever(changed(ranking="awareness+gated"))
    model.boundary.t.fill_(0.3)
    model.save(tmp_path / "model", notes="## Results\n\nmR 12.3")
    again = pmpguard.load(tmp_path / "model")
    assert again.config == model.config and not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    images = pixels()
    texts = [*CAPTIONS, "an unseen word"]
    assert_same(again.encode_texts(texts), model.encode_texts(texts))
    assert_same(again.encode_images(images), model.encode_images(images))
    scores = [m.score(m.encode_texts(texts), m.encode_images(images)) for m in (again, model)]
    assert torch.equal(*scores)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "README.md", "manifest.json"}
    card = (tmp_path / "model" / "README.md").read_text()
    assert "mR 12.3" in card and "4 x 4 regions" in card
    again.save(tmp_path / "model")  # over itself
    assert torch.equal(Retriever.load(tmp_path / "model").log_temperature, model.log_temperature)


def test_a_saved_hugging_face_pair_loads_without_its_checkpoints(tmp_path, monkeypatch):
    from tokenizers import Tokenizer as Rules
    from tokenizers import models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, SwinConfig, SwinModel

    vision, text = tmp_path / "swin", tmp_path / "bert"
    SwinModel(
        SwinConfig(image_size=64, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
    ).save_pretrained(vision)
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "pond"])}
    BertModel(
        BertConfig(
            vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
    ).save_pretrained(text)
    rules = Rules(models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]").save_pretrained(text)

    model = Retriever.create(
        RetrieverConfig(vision=str(vision), text=str(text), dim=32, image_size=64)
    ).eval()
    model.save(tmp_path / "model")
    shutil.rmtree(vision)
    shutil.rmtree(text)
    for module in (image_encoder, text_encoder):
        monkeypatch.setattr(module, "load_tower", None)
        monkeypatch.setattr(module, "wheel_path", None)
    again = Retriever.load(tmp_path / "model")
    images = pixels()
    assert_same(again.encode_images(images), model.encode_images(images))
    assert_same(again.encode_texts(["a pond", "pond"]), model.encode_texts(["a pond", "pond"]))
    assert [word.word for word in again.explain("a pond", images[0]).words] == ["a", "pond"]


def test_a_pickle_named_safetensors_is_refused(tmp_path):
    class Canary:
        def __reduce__(self):
            return (open, (str(tmp_path / "canary"), "w"))

    retriever().save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(pickle.dumps(Canary()))
    with pytest.raises(PmpguardError, match=r"model\.safetensors: content differs"):
        Retriever.load(tmp_path / "model")
    write_manifest(tmp_path / "model")  # whoever plants one can also write hashes
    with pytest.raises(ModelError, match=r"model\.safetensors: not a safetensors file"):
        Retriever.load(tmp_path / "model")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "README.md"])
def test_a_flipped_byte_and_a_lost_file_are_named(tmp_path, name):
    retriever().save(tmp_path / "model")
    path = tmp_path / "model" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(PmpguardError, match=name):
        Retriever.load(tmp_path / "model")
    path.unlink()
    with pytest.raises(PmpguardError, match="no model here" if name == "config.json" else name):
        Retriever.load(tmp_path / "model")


def edit_config(folder, change):
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    write_manifest(folder)


def test_another_models_config_is_refused(tmp_path):
    retriever().save(tmp_path / "model")
    for change, message in (
        (lambda stored: stored["retriever"].update(dim=16), "has shape"),
        (lambda stored: stored["retriever"]["cross_gated"].update(use=False), "unknown tensor 'cross_gated"),
        (lambda stored: stored["retriever"].update(colour="blue"), "retriever.colour: unknown setting"),
        (lambda stored: stored.update(format=99), "format 99"),
    ):
        shutil.copytree(tmp_path / "model", tmp_path / "edited")
        edit_config(tmp_path / "edited", change)
        with pytest.raises(PmpguardError, match=message):
            Retriever.load(tmp_path / "edited")
        shutil.rmtree(tmp_path / "edited")


def test_an_interrupted_replacement_is_finished(tmp_path):
    retriever().save(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".old-model")
    assert Retriever.load(tmp_path / "model").config == SMALL.sized()
    with pytest.raises(ModelError, match="no model here"):
        Retriever.load(tmp_path / "nowhere")


# -------------------------------------------------------------------------------------------------- training


def test_temperature_is_bounded_and_can_come_back():
    model = retriever()
    assert model.temperature.item() == pytest.approx(0.07)
    for log, expected in ((-9.0, 0.01), (3.0, 0.5)):
        model.log_temperature.data.fill_(log)
        model.log_temperature.grad = None
        model.temperature.backward()
        assert model.temperature.item() == pytest.approx(expected)
        assert model.log_temperature.grad.item() == pytest.approx(expected)


def test_parameter_groups_hold_every_trainable_parameter_once():
    frozen = changed(vision_options=EncoderOptions(frozen=True))
    for config in (SMALL, frozen):
        model = retriever(config)
        groups = parameter_groups(model)
        grouped = [id(parameter) for group in groups.values() for parameter in group]
        trainable = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
        assert sorted(grouped) == sorted(trainable)
        assert groups["encoder"] == [] and groups["encoder_no_decay"] == []  # nothing here is pretrained
        assert all(parameter.ndim > 1 for parameter in groups["new"])
        assert any(parameter is model.log_temperature for parameter in groups["new_no_decay"])
    architecture = dataclasses.replace(model.text_encoder.architecture, family="huggingface")
    model.text_encoder.architecture = architecture
    pretrained = {id(parameter) for parameter in model.text_encoder.backbone.parameters()}
    groups = parameter_groups(model)
    assert {
        id(parameter) for name in ("encoder", "encoder_no_decay") for parameter in groups[name]
    } == pretrained


def test_settings_that_contradict_each_other_are_refused():
    off = CrossGatedConfig(use=False)
    with pytest.raises(ConfigError, match="needs cross-gated attention"):
        changed(cross_gated=off, ranking="awareness+gated")
    with pytest.raises(ConfigError, match="needs cross-gated attention"):
        changed(cross_gated=off, awareness=AwarenessConfig(input="gated"))
    with pytest.raises(ConfigError, match="temperature"):
        changed(temperature=0.9)
    with pytest.raises(ConfigError, match="max_tokens"):
        changed(max_tokens=0)
    with pytest.raises(ConfigError, match="choose one of tiny, light"):
        preset("huge")
    model = retriever(changed(cross_gated=off))
    texts, images = model.encode_texts(CAPTIONS), model.encode_images(pixels(3))
    assert model.score(texts, images).shape == (4, 3)
    with pytest.raises(ConfigError, match="needs cross-gated attention"):
        model.score(texts, images, "gated")


def test_a_tiny_model_learns_to_tell_four_images_apart():
    model, images = retriever().train(), pixels()
    groups = parameter_groups(model)
    optimiser = torch.optim.AdamW([{"params": group} for group in groups.values() if group], lr=2e-3)
    for _ in range(40):
        texts = model.forward_texts(*model.tokenize(CAPTIONS))
        logits = texts.pooled @ model.forward_images(images).pooled.T / model.temperature
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(4))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    scores = model.score(model.encode_texts(CAPTIONS), model.encode_images(images), "pooled")
    assert scores.argmax(1).tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------- inputs and other names


def test_images_come_as_paths_arrays_tensors_and_one_by_one(tmp_path):
    model, images = retriever(), pixels(2)
    expected = model.encode_images(images)
    paths = []
    for place, image in enumerate(as_pil(images)):
        image.save(tmp_path / f"{place}.png")
        paths.append(tmp_path / f"{place}.png")
    arrays = images.permute(0, 2, 3, 1).numpy()
    for same in (paths, list(map(str, paths)), arrays, list(arrays), list(images), [paths[0], images[1]]):
        assert_same(model.encode_images(same), expected)
    expected_one = model.encode_images(images[:1])
    for one in (str(paths[0]), paths[0], as_pil(images)[0], arrays[0], images[0]):
        assert_same(model.encode_images(one), expected_one)
    mixed = model.encode_images([arrays[0], arrays[1] / np.float32(255)])
    torch.testing.assert_close(mixed.pooled, expected.pooled, atol=1e-5, rtol=0)


def test_images_of_another_kind_are_named(tmp_path):
    model = retriever()
    with pytest.raises(DataError, match=r"nowhere\.png: no such file"):
        model.encode_images([str(tmp_path / "nowhere.png")])
    with pytest.raises(DataError, match=r"array has shape \(3, 64, 64\)"):
        model.encode_images(np.zeros((3, 64, 64), np.uint8))
    with pytest.raises(DataError, match="image 1 is a int"):
        model.encode_images([pixels(1)[0], 7])
    with pytest.raises(DataError, match=r"image 0 has shape \(64, 64\)"):
        model.encode_images([torch.zeros(64, 64)])
    with pytest.raises(DataError, match="image 0 is a int"):
        model.encode_images(7)
    for given, message in ((7, "text 0 is a int"), (["a pond", None], "text 1 is a NoneType")):
        with pytest.raises(DataError, match=message):
            model.encode_texts(given)


def test_one_caption_is_a_string():
    model = retriever()
    assert_same(model.encode_texts("a round pond"), model.encode_texts(["a round pond"]))


def test_names_of_sentence_transformers():
    model, images = retriever(), pixels(3)
    texts = model.encode_query(CAPTIONS)
    documents = model.encode_document(images)
    assert texts.shape == (4, 32) and documents.shape == (3, 32)
    assert np.allclose(np.linalg.norm(np.asarray(texts), axis=1), 1, atol=1e-5)
    expected = model.score(CAPTIONS, images, "pooled")
    torch.testing.assert_close(model.similarity(texts, documents), expected)
    torch.testing.assert_close(model.similarity(3 * texts.numpy(), documents.numpy()), expected)
    torch.testing.assert_close(
        model.similarity(model.encode_texts(CAPTIONS), model.encode_images(images)).cpu(), expected
    )


def test_score_encodes_what_is_not():
    model, images = retriever(), pixels(3)
    expected = model.score(model.encode_texts(CAPTIONS), model.encode_images(images))
    assert torch.equal(model.score(CAPTIONS, images), expected)
    torch.testing.assert_close(model.score(CAPTIONS[0], as_pil(images)), expected[:1])


def test_repr_is_short_and_an_explanation_is_a_table(tmp_path):
    model = retriever()
    assert repr(model).splitlines()[0] == "Retriever(tiny + tiny, ranked by awareness)"
    assert len(repr(model).splitlines()) == 4 and "64 px, 4 x 4 regions" in repr(model)
    text = "the <b> pond"
    page = model.explain(text, pixels(1)[0])._repr_html_()
    assert page.count("<tr>") == 4 and page.count("<svg") == 3 and page.count("<rect") == 48
    assert "<b>" not in page


def test_a_tokenizer_with_more_ids_than_the_encoder_is_refused(tmp_path):
    retriever().save(tmp_path / "model")
    larger = word_tokenizer([*CAPTIONS, "some other words"])
    (tmp_path / "model" / "tokenizer.json").write_text(larger.to_json())
    write_manifest(tmp_path / "model")
    with pytest.raises(
        ModelError, match=r"tokenizer\.json: the tokenizer has id 19, but the text encoder knows 17 ids"
    ):
        Retriever.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("retriever.dim", 10**9), ("retriever.dim", 60_000), ("retriever.image_size", 10**7),
        ("retriever.max_tokens", 10**9), ("text_encoder.settings.vocabulary", 10**12),
        ("text_encoder.settings.max_tokens", 10**12), ("retriever.dim", -1), ("retriever.dim", "x"),
        ("text_encoder.prefix", 2**70), ("text_encoder.suffix", 10**400), ("text_encoder.pad_id", -1),
    ],
)  # fmt: skip
def test_hostile_sizes_are_refused_before_memory_is_taken(tmp_path, place, value):
    Retriever.create(preset("tiny", dim=16, image_size=32), ["a pond"]).save(tmp_path / "m")
    stored = json.loads((tmp_path / "m" / "config.json").read_text())
    *parents, name = place.split(".")
    target = stored
    for parent in parents:
        target = target[parent]
    target[name] = value
    write_json(tmp_path / "m" / "config.json", stored)
    write_manifest(tmp_path / "m")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ModelError, ConfigError)):
        Retriever.load(tmp_path / "m")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
