"""Tiny checkpoints with random weights of the families that need care, as transformers saves them."""

import json

import torch
from helpers.text_checkpoints import CAPTIONS
from tokenizers import Tokenizer as Rules
from tokenizers import models, normalizers, pre_tokenizers, processors


def shaken(model):
    """The model with biases and norms away from 0 and 1, for evaluation."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def save_ending_tokenizer(folder, padding_side="right"):
    """A word-level tokenizer that ends a text with </s> and begins it with nothing, as SigLIP's and T5's."""
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    vocabulary = {word: place for place, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    rules = Rules(models.WordLevel(vocabulary, unk_token="<unk>"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rules,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        padding_side=padding_side,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer, len(vocabulary)


def save_siglip(folder, padding_side="right", image_size=32):
    """SigLIP, or SigLIP 2 of fixed resolution, which has the same form with another tokenizer."""
    from transformers import SiglipConfig, SiglipModel

    tokenizer, size = save_ending_tokenizer(folder, padding_side)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = shaken(
        SiglipModel(
            SiglipConfig(
                vision_config=tower | {"image_size": image_size, "patch_size": 8},
                text_config=tower
                | {
                    "vocab_size": size,
                    "max_position_embeddings": 10,
                    "projection_size": 16,
                    "pad_token_id": 0,
                },
            )
        )
    )
    model.save_pretrained(folder)
    pixels = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": image_size, "width": image_size},
        "do_resize": True,
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return model, tokenizer


def save_mae(folder):
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    torch.manual_seed(0)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    decoder = {"decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    config = ViTMAEConfig(image_size=32, patch_size=8, decoder_intermediate_size=16, **tower, **decoder)
    model = shaken(ViTMAEForPreTraining(config))
    model.save_pretrained(folder)
    return model


def save_t5(folder, name="T5"):
    """T5 or mT5."""
    import transformers

    tokenizer, size = save_ending_tokenizer(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=size,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = shaken(getattr(transformers, f"{name}ForConditionalGeneration")(config))
    model.save_pretrained(folder)
    return model, tokenizer
