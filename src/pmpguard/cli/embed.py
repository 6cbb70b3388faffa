"""`pmpguard embed`."""

from __future__ import annotations

from pathlib import Path

from pmpguard.device import pick_device
from pmpguard.errors import ConfigError
from pmpguard.search.embed import EmbeddingReport, embed_source
from pmpguard.search.sources import open_source


def embed(
    source: Path,
    model: Path | None = None,
    out: Path | None = None,
    partition_size: int = 1000,
    images: Path | None = None,
    format: str | None = None,
    columns: str | None = None,
    prefix: str = "",
    device: str = "auto",
    workers: int = 2,
    progress: bool = True,
) -> EmbeddingReport:
    """Embed images, and captions where there are any, into a folder of vectors others can read.

    Killed or not, the same command goes on where it stopped; later it embeds what has been added since. The
    exit code is 3 when some images could not be read: they are listed in OUT/problems.json, everything else
    is embedded.

    Args:
        source: a folder of images, a dataset in any known format, tar shards, or one image.
        model: a model directory.
        out: the folder to write, or to go on with.
        partition_size: images in one file of vectors.
        images: folder of the images, where a dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        prefix: put before every id, to tell two folders with the same file names apart.
        device: "auto", "cpu" or "cuda".
        workers: threads that decode images; 0 for none.
        progress: draw a progress bar on stderr.
    """
    if model is None or out is None:
        raise ConfigError("where is the model, and where do vectors go?", fix="give --model DIR --out FOLDER")
    return embed_source(
        open_source(source, format=format, images=images, prefix=prefix, columns=columns),
        model,
        out,
        partition_size=partition_size,
        device=str(pick_device(device)),
        workers=workers,
        progress=progress,
    )
