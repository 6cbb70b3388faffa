"""Images of any shape as squares: Pillow's filters, and the crops of two libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from pmpguard.data.images.decode import image_tensor
from pmpguard.data.images.framing import Framing, crop_start, framed, framed_tensor

DRAW = np.random.default_rng(3)


def noise(width, height):
    return Image.fromarray(DRAW.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("shape", [(500, 333), (333, 500), (30, 100), (224, 224), (1000, 999)])
def test_crops_are_those_of_transformers(shape):
    from transformers import CLIPImageProcessor

    image = noise(*shape)
    sizes = {"size": {"shortest_edge": 60}, "crop_size": {"height": 48, "width": 48}}
    theirs = CLIPImageProcessor(**sizes, do_rescale=False, do_normalize=False)(image).pixel_values[0]
    ours = image_tensor(image, 48, Framing("crop", shorter_side=60, half_pixel="down"))
    assert np.array_equal(ours.numpy(), np.asarray(theirs).astype(np.uint8))


def test_half_a_pixel_goes_to_even_as_torchvision_rounds_it():
    even, down = Framing("crop"), Framing("crop", half_pixel="down")
    left_out = range(8)
    assert [crop_start(10 + more, 10, even) for more in left_out] == [0, 0, 1, 2, 2, 2, 3, 4]
    assert [crop_start(10 + more, 10, down) for more in left_out] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("framing", [Framing(), Framing("crop"), Framing("crop", "bilinear", 40)])
def test_tensors_are_framed_as_images_are(framing):
    image = framed(noise(12, 9), 90, Framing("squash"))  # smooth, so that rounding between passes is small
    image = image.resize((90, 70))
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    ours = framed_tensor(values, 32, framing)[0]
    theirs = image_tensor(image, 32, framing)
    assert ours.dtype == torch.uint8 and ours.shape == theirs.shape == (3, 32, 32)
    assert int((ours.int() - theirs.int()).abs().max()) <= 2


def test_a_square_is_only_resized():
    image = noise(64, 64)
    squash, crop = (image_tensor(image, 32, Framing(fit)) for fit in ("squash", "crop"))
    assert torch.equal(squash, crop)
