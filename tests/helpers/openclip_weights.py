"""A tiny CLIP with random weights, under Hugging Face's names and under OpenCLIP's."""

import torch


def tiny_clip(activation="quick_gelu"):
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    tower = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_act": activation, "projection_dim": 24}
    config = CLIPConfig(
        vision_config=tower
        | {"hidden_size": 32, "intermediate_size": 128, "image_size": 32, "patch_size": 8},
        text_config=tower
        | {
            "hidden_size": 16,
            "intermediate_size": 64,
            "vocab_size": 50,
            "max_position_embeddings": 12,
            "bos_token_id": 48,
            "eos_token_id": 49,
            "pad_token_id": 49,
        },
        projection_dim=24,
    )
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms away from 0 and 1
    return model


def openclip_names(model):
    """The model's weights as OpenCLIP would save them, written from OpenCLIP's side."""
    source = model.state_dict()
    weights = {
        "positional_embedding": source["text_model.embeddings.position_embedding.weight"],
        "text_projection": source["text_projection.weight"].T,
        "logit_scale": source["logit_scale"],
        "token_embedding.weight": source["text_model.embeddings.token_embedding.weight"],
        "visual.class_embedding": source["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": source["vision_model.embeddings.position_embedding.weight"],
        "visual.proj": source["visual_projection.weight"].T,
        "visual.conv1.weight": source["vision_model.embeddings.patch_embedding.weight"],
        "attn_mask": torch.full((12, 12), float("-inf")).triu(1),
    }
    for kind in ("weight", "bias"):
        weights[f"ln_final.{kind}"] = source[f"text_model.final_layer_norm.{kind}"]
        weights[f"visual.ln_pre.{kind}"] = source[f"vision_model.pre_layrnorm.{kind}"]
        weights[f"visual.ln_post.{kind}"] = source[f"vision_model.post_layernorm.{kind}"]
        for tower, prefix in (("vision", "visual."), ("text", "")):
            for layer in range(2):
                theirs = f"{tower}_model.encoder.layers.{layer}"
                ours = f"{prefix}transformer.resblocks.{layer}"
                parts = [source[f"{theirs}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                weights[f"{ours}.attn.in_proj_{kind}"] = torch.cat(parts)
                weights[f"{ours}.attn.out_proj.{kind}"] = source[f"{theirs}.self_attn.out_proj.{kind}"]
                weights[f"{ours}.ln_1.{kind}"] = source[f"{theirs}.layer_norm1.{kind}"]
                weights[f"{ours}.ln_2.{kind}"] = source[f"{theirs}.layer_norm2.{kind}"]
                weights[f"{ours}.mlp.c_fc.{kind}"] = source[f"{theirs}.mlp.fc1.{kind}"]
                weights[f"{ours}.mlp.c_proj.{kind}"] = source[f"{theirs}.mlp.fc2.{kind}"]
    return {name: tensor.contiguous() for name, tensor in weights.items()}


WORDS = ["a", "pond", "round", "two", "planes", "near", "farm", "trees"]


def save_tokenizer(folder):
    """A word-level tokenizer of 50 ids, CLIP's special tokens last, as a checkpoint's folder has it."""
    from tokenizers import Tokenizer as Rules
    from tokenizers import models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    first, last = "<|startoftext|>", "<|endoftext|>"
    names = ["[UNK]", *WORDS]
    names += [f"unused{place}" for place in range(len(names), 48)]
    rules = Rules(
        models.WordLevel({word: place for place, word in enumerate([*names, first, last])}, "[UNK]")
    )
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing((last, 49), (first, 48))
    PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token=last, unk_token="[UNK]", bos_token=first, eos_token=last
    ).save_pretrained(folder)
