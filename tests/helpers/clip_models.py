"""Retrievers on the towers of a tiny CLIP, with weights as training leaves them."""

import torch
from helpers.openclip_weights import save_tokenizer, tiny_clip

from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever


def trained_clip(folder, **changes):
    """A model trained from the CLIP in `folder`, which is written: its last layers have biases."""
    tiny_clip().save_pretrained(folder)
    save_tokenizer(folder)
    settings = {"dim": 16, "image_size": 32, "max_tokens": 10} | changes
    model = Retriever.create(preset("clip", vision=str(folder), text=str(folder), **settings)).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model
