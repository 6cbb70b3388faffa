"""Holding a model's vectors against those that another library wrote beside it."""

import json

import numpy as np
import pytest
from PIL import Image

import pmpguard
from pmpguard.errors import DataError


def check_vectors(model, folder, saved, empty=("",)):
    """Images of any shape and odd texts give the recorded vectors, also after the model is saved to `saved`.

    How far they are from the recorded ones at most. `empty` are the texts of which nothing is left to read:
    the others embed the end of the text alone.
    """
    images, wanted = np.load(folder / "inputs.npz"), np.load(folder / "outputs.npz")
    seen = model.encode_document([Image.fromarray(images[name]) for name in images.files])
    np.testing.assert_allclose(seen.numpy(), wanted["images"], atol=1e-5, rtol=0)
    texts = json.loads((folder / "texts.json").read_text())
    for text in empty:
        with pytest.raises(DataError, match="has no words"):
            model.encode_query(text)
    rows = [row for row, text in enumerate(texts) if text not in empty]
    assert len(rows) >= 20
    read = model.encode_query([texts[row] for row in rows])
    np.testing.assert_allclose(read.numpy(), wanted["texts"][rows], atol=1e-5, rtol=0)
    model.save(saved)  # framing and cleaning are kept
    again = pmpguard.load(saved)
    assert np.array_equal(again.encode_query([texts[row] for row in rows]), read)
    assert np.array_equal(again.encode_document([Image.fromarray(images[n]) for n in images.files]), seen)
    pairs = (seen.numpy(), wanted["images"]), (read.numpy(), wanted["texts"][rows])
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
