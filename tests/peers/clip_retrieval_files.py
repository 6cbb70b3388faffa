"""What the real clip-retrieval writes for the shards that the real img2dataset wrote.

    python tests/peers/clip_retrieval_files.py OUT

It needs clip-retrieval, which the project's own environment must not have. Its reader, mapper and writer are
at work; only the CLIP is a stand-in, for none can be downloaded: an image's vector is its mean colour, a
text's how often each letter is in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from clip_retrieval.clip_inference import mapper, worker

SHARDS = Path(__file__).parents[1] / "data" / "formats" / "peer_files" / "img2dataset" / "webdataset"
LETTERS = 8


class StandIn:
    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """(N, H, W, 3) to (N, 8)."""
        return torch.nn.functional.pad(pixels.float().mean((1, 2)), (0, LETTERS - 3), value=1)

    def encode_text(self, counts: torch.Tensor) -> torch.Tensor:
        return counts + 1.0


def load_clip(**_: object) -> tuple[StandIn, object, object]:
    def letters(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[text.count(one) for one in "aeno0123"] for text in texts])

    return StandIn(), lambda image: torch.from_numpy(np.array(image.convert("RGB"))), letters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    mapper.load_clip = worker.load_clip = load_clip
    shards = sorted(map(str, SHARDS.glob("*.tar")))
    worker.worker(
        range(len(shards)),
        shards,
        str(out),
        output_partition_count=len(shards),
        input_format="webdataset",
        num_prepro_workers=0,
        enable_metadata=True,
        wds_image_key="png",
    )


if __name__ == "__main__":
    main()
