"""What pmpguard reads of a data set of the real torchgeo: EuroSAT, of two tiny images.

    python tests/peers/torchgeo_samples.py FOLDER

It needs torchgeo, which the project's own environment must not have, beside what pmpguard needs. Captions are
the names of the classes. Prints them, and one pixel of each image.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import rasterio
from torchgeo.datasets import EuroSAT

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from pmpguard.audit.given_data import pairs_of_data
from pmpguard.data.images.decode import load_pair_image

CLASSES = ("Forest", "River")


def write_eurosat(root: Path) -> None:
    """Bands 1 to 13 hold 10 to 130, and 100 more in the second class."""
    for number, name in enumerate(CLASSES):
        path = root / EuroSAT.base_dir / name / f"{name}_1.tif"
        path.parent.mkdir(parents=True)
        bands = np.arange(10, 140, 10, dtype=np.uint16)[:, None, None] + np.zeros((13, 16, 16), np.uint16)
        shape = {"width": 16, "height": 16, "count": 13, "dtype": "uint16"}
        with rasterio.open(path, "w", driver="GTiff", **shape) as file:
            file.write(bands + np.uint16(100 * number))
    (root / EuroSAT.split_filenames["train"]).write_text("".join(f"{name}_1.jpg\n" for name in CLASSES))


def main() -> None:
    root = Path(sys.argv[1])
    write_eurosat(root)
    (root / "images").mkdir()
    table = pairs_of_data(EuroSAT(str(root)), {"caption": "label"}, None, root / "images")
    pixels = [np.asarray(load_pair_image(table, row))[0, 0].tolist() for row in range(len(table))]
    print(json.dumps({"captions": list(table.captions), "pixels": pixels}))


if __name__ == "__main__":
    main()
