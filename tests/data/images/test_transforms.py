import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from pmpguard.data.images.transforms import (
    Augmentation,
    augment,
    crop_and_resize,
    crop_boxes,
    resize,
    shift_colour,
    turn_and_flip,
)
from pmpguard.errors import ConfigError

GEOMETRY_ONLY = Augmentation(crop_min=1.0, colour=0.0)


def pixels(count, size=16, seed=0):
    return torch.randint(0, 256, (count, 3, size, size), generator=seeded(seed), dtype=torch.uint8)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def no_directions(images):
    return torch.zeros(len(images), dtype=torch.bool)


def test_every_turn_and_flip_is_numpys():
    images = pixels(16)
    cases = [(turns, columns, rows) for turns in range(4) for columns in (0, 1) for rows in (0, 1)]
    turns, columns, rows = (torch.tensor(values) for values in zip(*cases, strict=True))
    result = turn_and_flip(images, turns, columns.bool(), rows.bool())
    for pixel_image, (turn, column, row), image in zip(result, cases, images, strict=True):
        expected = np.rot90(image.numpy(), turn, axes=(1, 2))
        expected = expected[:, :, ::-1] if column else expected
        expected = expected[:, ::-1] if row else expected
        np.testing.assert_array_equal(pixel_image.numpy(), expected)


def test_turning_images_that_are_not_square_is_refused():
    with pytest.raises(ConfigError, match="8x6"):
        augment(torch.zeros(1, 3, 8, 6), seeded(0), GEOMETRY_ONLY, torch.zeros(1, dtype=torch.bool))


def test_augment_permutes_pixels_exactly_and_reaches_all_eight_orientations():
    image = pixels(1)[0]
    images = image.expand(200, -1, -1, -1)
    result = augment(images, seeded(1), GEOMETRY_ONLY, no_directions(images)).to(torch.uint8).numpy()
    orientations = {
        np.ascontiguousarray(turned).tobytes()
        for turns in range(4)
        for turned in (
            np.rot90(image.numpy(), turns, (1, 2)),
            np.rot90(image.numpy(), turns, (1, 2))[:, :, ::-1],
        )
    }
    seen = {np.ascontiguousarray(pixel_image).tobytes() for pixel_image in result}
    assert seen == orientations


def test_images_whose_caption_names_a_direction_keep_their_orientation():
    images = pixels(64)
    keep = torch.arange(64) % 2 == 0
    result = augment(images, seeded(2), GEOMETRY_ONLY, keep)
    assert torch.equal(result[keep], images[keep].float())
    assert not torch.equal(result[~keep], images[~keep].float())


@pytest.mark.parametrize("field", ["flip", "rotate"])
def test_one_switch_leaves_the_other_draws_alone(field):
    images = pixels(32)
    config = Augmentation(crop_min=0.5, colour=0.2)
    changed = dataclasses.replace(config, **{field: False})
    both, one = (
        augment(images, seeded(3), settings, torch.ones(32, dtype=torch.bool))
        for settings in (config, changed)
    )
    assert torch.equal(both, one)  # with every orientation kept, the switch must change nothing at all


def test_same_generator_state_same_images_and_a_new_state_others():
    images = pixels(8)
    config = Augmentation(colour=0.3)
    generator = seeded(5)
    first = augment(images, generator, config, no_directions(images))
    second = augment(images, generator, config, no_directions(images))
    again = augment(images, seeded(5), config, no_directions(images))
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_a_image_depends_on_its_own_position_only():
    images = pixels(8)
    changed = images.clone()
    changed[3] = 255 - changed[3]
    config = Augmentation(colour=0.3)
    first, second = (augment(batch, seeded(6), config, no_directions(batch)) for batch in (images, changed))
    others = torch.arange(8) != 3
    assert torch.equal(first[others], second[others]) and not torch.equal(first[3], second[3])


def test_shares_of_a_batch_give_what_the_whole_batch_gives():
    images = pixels(9)
    config = Augmentation(colour=0.3)
    keep = torch.arange(9) % 3 == 0
    whole = augment(images, seeded(7), config, keep)
    for share in (slice(0, 5), slice(5, 9), slice(9, 9)):
        part = augment(images[share], seeded(7), config, keep, share)
        assert torch.equal(part, whole[share])
    with pytest.raises(ValueError, match="9 images but keep_orientation holds 5"):
        augment(images, seeded(7), config, keep, slice(0, 5))


def test_everything_off_returns_the_pixels():
    images = pixels(4)
    config = Augmentation(flip=False, rotate=False, crop_min=1.0)
    assert torch.equal(augment(images, seeded(0), config, no_directions(images)), images.float())


def test_crop_boxes_lie_inside_and_keep_area_and_aspect():
    config = Augmentation(crop_min=0.3, aspect=1.5)
    left, top, width, height = crop_boxes(torch.rand(5000, 10, generator=seeded(0)), config).unbind(1)
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + width <= 1 + 1e-6).all() and (top + height <= 1 + 1e-6).all()
    inside = (width < 1) & (height < 1)  # a box cut at the border loses a little area
    area = (width * height)[inside]
    assert 0.3 - 1e-5 <= area.min() < 0.32 and 0.9 < area.max() <= 1
    ratio = (width / height).clamp(min=1e-6)
    assert ratio.max() <= 1.5 + 1e-4 and ratio.min() >= 1 / 1.5 - 1e-4
    assert ratio.max() > 1.4 and ratio.min() < 0.72


def bilinear_crop(image, box):
    """One channel, one pixel at a time, in float64: where output pixel centres fall in the input."""
    size = image.shape[-1]
    left, top, width, height = box
    result = np.zeros_like(image)
    for row in range(size):
        for column in range(size):
            y = min(max((top + height * (row + 0.5) / size) * size - 0.5, 0), size - 1)
            x = min(max((left + width * (column + 0.5) / size) * size - 0.5, 0), size - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, size - 1), min(x0 + 1, size - 1)
            dy, dx = y - y0, x - x0
            upper = image[y0, x0] * (1 - dx) + image[y0, x1] * dx
            lower = image[y1, x0] * (1 - dx) + image[y1, x1] * dx
            result[row, column] = upper * (1 - dy) + lower * dy
    return result


def test_crop_and_resize_against_a_loop():
    images = torch.rand(3, 3, 9, 9, generator=seeded(1), dtype=torch.float64)
    boxes = torch.tensor(
        [[0.1, 0.2, 0.5, 0.7], [0.0, 0.0, 1.0, 1.0], [0.4, 0.3, 0.6, 0.4]], dtype=torch.float64
    )
    result = crop_and_resize(images, boxes).numpy()
    for pixel_image, image, box in zip(result, images.numpy(), boxes.tolist(), strict=True):
        for channel in range(3):
            np.testing.assert_allclose(pixel_image[channel], bilinear_crop(image[channel], box), atol=1e-12)
    np.testing.assert_allclose(result[1], images[1].numpy(), atol=1e-12)


def test_colour_against_a_loop_and_independent_of_scale():
    images = torch.rand(4, 3, 5, 5, generator=seeded(2), dtype=torch.float64)
    strength = torch.tensor([[0.2, 0, 0], [0, -0.3, 0], [0, 0, 0.4], [0.1, -0.2, 0.3]], dtype=torch.float64)
    result = shift_colour(images, strength).numpy()
    for pixel_image, image, (brightness, contrast, saturation) in zip(
        result, images.numpy(), strength.numpy(), strict=True
    ):
        grey = (image[0] + image[1] + image[2]) / 3
        saturated = np.stack([grey + (1 + saturation) * (channel - grey) for channel in image])
        expected = grey.mean() + brightness * grey.std() + (1 + contrast) * (saturated - grey.mean())
        np.testing.assert_allclose(pixel_image, expected, atol=1e-12)
    scaled = shift_colour(images * 7 - 3, strength)
    np.testing.assert_allclose(scaled.numpy(), result * 7 - 3, atol=1e-12)


def test_a_flat_image_survives_colour_and_crop():
    images = torch.full((2, 3, 8, 8), 90.0)
    result = augment(images, seeded(0), Augmentation(colour=0.5), no_directions(images))
    assert torch.allclose(result, images, atol=1e-3)


def test_resize_is_pillows_filter():
    values = np.random.default_rng(0).uniform(0, 255, (3, 50, 70)).astype(np.float32)
    tensor = torch.from_numpy(values)[None]  # (1,3,50,70)
    for size in (24, 96):
        bands = [Image.fromarray(band).resize((size, size), Image.Resampling.BICUBIC) for band in values]
        expected = np.stack([np.asarray(band) for band in bands])
        np.testing.assert_allclose(resize(tensor, (size, size))[0].numpy(), expected, atol=0.01)
        whole = resize(tensor.to(torch.uint8), (size, size))
        assert whole.dtype == torch.uint8 and whole.shape == (1, 3, size, size)


def test_resizing_uint8_clamps_the_overshoot():
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    image[..., 4:] = 255
    larger = resize(image, (32, 32))
    assert larger.min() == 0 and larger.max() == 255
    assert (larger[..., :10] == 0).all() and (larger[..., 22:] == 255).all()  # no wrap-around beside the edge


@pytest.mark.parametrize("bad", [{"crop_min": 0.0}, {"crop_min": 1.1}, {"aspect": 0.5}, {"colour": 1.0}])
def test_settings_out_of_range_name_the_field(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Augmentation(**bad)


def test_empty_batch():
    images = torch.zeros(0, 3, 8, 8)
    assert augment(images, seeded(0), Augmentation(colour=0.1), no_directions(images)).shape == (0, 3, 8, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cpu_generator_gives_every_device_the_same():
    images = pixels(32)
    config = Augmentation(colour=0.2)
    on_cpu = augment(images, seeded(4), config, no_directions(images))
    on_gpu = augment(images.cuda(), seeded(4), config, no_directions(images)).cpu()
    assert torch.allclose(on_cpu, on_gpu, atol=0.05)
