"""What the real open_clip makes of a folder that `pmpguard export --to open_clip` wrote.

    python tests/peers/openclip_reads.py FOLDER IN.npz OUT.npz

IN holds images arr_0, arr_1 ... and the ids (N, L) of texts; OUT gets the unit vectors of both.
"""

import sys

import numpy as np
import open_clip
import torch
from PIL import Image

folder, given, out = sys.argv[1:]
model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
model.eval()
inputs = np.load(given)
images = [Image.fromarray(inputs[name]) for name in sorted(inputs.files) if name.startswith("arr_")]
with torch.no_grad():
    seen = model.encode_image(torch.stack([preprocess(image) for image in images]), normalize=True)
    read = model.encode_text(torch.from_numpy(inputs["ids"]), normalize=True)
np.savez(out, images=seen.numpy(), texts=read.numpy())
