"""Make what the container serves when it is tried: two drawn scenes, by a model that learned nothing."""

from pathlib import Path

from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import build_index
from pmpguard.search.sources import open_source
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

world = synthetic_scenes(2)
write_world(world, Path("world"))
Retriever.create(RetrieverConfig(dim=16, image_size=32), world.table.captions).save(Path("model"))
embed_source(open_source(Path("world")), Path("model"), Path("emb"), threads=0, progress=False)
build_index(Path("index"), Path("emb"))
