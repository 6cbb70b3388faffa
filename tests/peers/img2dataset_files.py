"""What the real img2dataset writes, in its three forms, of six small images and one that is not there.

    python tests/peers/img2dataset_files.py OUT

It needs img2dataset, which the project's own environment must not have: it brings an OpenCV and a webdataset
of its own. Images come from `file:` addresses, so no network is used.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from pathlib import Path

from img2dataset import download
from PIL import Image

FORMS = ("webdataset", "files", "parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        listing = Path(scratch, "urls.csv")
        rows = [("file:///nowhere/gone.png", "an image that is not there")]
        for number in range(6):
            path = Path(scratch, f"{number}.png")
            stream = io.BytesIO()
            Image.new("RGB", (4, 4), (40 * number, 80, 40)).save(stream, "PNG")
            path.write_bytes(stream.getvalue())
            rows.insert(number, (path.as_uri(), f"a pond, number {number}"))
        with listing.open("w", newline="") as stream:
            csv.writer(stream).writerows([("url", "caption"), *rows])
        for form in FORMS:
            download(
                url_list=str(listing),
                input_format="csv",
                url_col="url",
                caption_col="caption",
                output_folder=str(out / form),
                output_format=form,
                encode_format="png",
                encode_quality=9,
                resize_mode="no",
                processes_count=1,
                thread_count=1,
                number_sample_per_shard=4,
                enable_wandb=False,
            )


if __name__ == "__main__":
    main()
