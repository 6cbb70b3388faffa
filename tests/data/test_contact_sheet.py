import numpy as np
import pytest
from PIL import Image, ImageFont

from pmpguard.data.contact_sheet import contact_sheet, wrap
from pmpguard.errors import ConfigError

FONT = ImageFont.load_default(14)


def plain(colour, size=(64, 64)):
    return Image.new("RGB", size, colour)


def test_images_lie_in_reading_order_whole_and_undistorted():
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sheet = contact_sheet(
        [plain(colours[0]), plain(colours[1], (64, 32)), plain(colours[2])], ["a"] * 3, 2, cell=64
    )
    pixels = np.asarray(sheet)
    boxes = []
    for colour in colours:
        rows, columns = np.nonzero((pixels == colour).all(-1))
        boxes.append(
            (rows.min(), columns.min(), rows.max() - rows.min() + 3, columns.max() - columns.min() + 3)
        )
    # The frame of one pixel belongs to the image: 62 pixels of colour are 64 with it.
    assert [box[2:] for box in boxes] == [(64, 64), (32, 64), (64, 64)]
    assert boxes[0][1] == boxes[2][1] < boxes[1][1] and boxes[0][0] < boxes[2][0]
    assert (pixels[0] == 255).all() and (pixels[:, 0] == 255).all()


def test_captions_are_drawn_below_their_image():
    images = [plain((200, 200, 200))] * 2
    with_text = np.asarray(contact_sheet(images, ["first", ""], 2, cell=64)).astype(int)
    without = np.asarray(contact_sheet(images, ["", ""], 2, cell=64)).astype(int)
    rows, columns = np.nonzero(np.abs(with_text - without).sum(-1))
    assert len(rows) and rows.min() > 64 and columns.max() < with_text.shape[1] // 2


@pytest.mark.parametrize(
    "text", ["a pond", "many planes " * 20, "w" * 200, "", "one " + "x" * 90 + " two three"]
)
def test_lines_fit_and_are_few(text):
    lines = wrap(text, FONT, 120)
    assert 1 <= len(lines) <= 3
    assert all(FONT.getlength(line) <= 120 for line in lines)
    if not any(line.endswith("...") for line in lines):
        assert " ".join(lines) == text.strip()
    elif len(text.split()) > 4:
        assert lines[-1].endswith("...")


def test_a_single_image_and_strange_requests():
    assert contact_sheet([plain((1, 2, 3))], ["a"], columns=5, cell=64).width == 64 + 2 * 8
    for images, captions, columns in (
        ([], [], 1),
        ([plain((0, 0, 0))], [], 1),
        ([plain((0, 0, 0))], ["a"], 0),
    ):
        with pytest.raises(ConfigError):
            contact_sheet(images, captions, columns)
