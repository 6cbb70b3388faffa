"""A file of embeddings as a STAC collection, in the terms of the embedding extension (`emb:`, version 0.0.1).

The collection says what the vectors are and which model made them of which images; its one item is the file.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmpguard.errors import require
from pmpguard.geo.footprints import Box, box_geometry

EXTENSION = "https://stac-extensions.github.io/embeddings/v0.0.1/schema.json"
COLLECTION, ITEM, ASSET = "collection.json", "item.json", "embeddings"
_MEDIA_TYPE = "application/vnd.apache.parquet"
_WHOLE_EARTH: Box = (-180.0, -90.0, 180.0, 90.0)


@dataclass(frozen=True)
class EmbeddingFacts:
    """What is to say about a file of embeddings; `model` and `source` are addresses, relative to it or whole.

    `chip` is (height, width) in pixels where all have one size.
    """

    id: str
    dim: int
    model: str
    model_name: str
    source: str
    chip: tuple[int, int] | None
    box: Box | None
    times: tuple[datetime.datetime, datetime.datetime] | None
    is_coded: bool  # whether the vectors were kept as int8

    def fields(self) -> dict[str, Any]:
        """The extension's fields of a collection; the footer of the file holds them too."""
        layout: dict[str, Any] = {"layout_type": "regular_grid" if self.chip else "variable_grid"}
        if self.chip:
            layout["chip_size"] = list(self.chip)
        return {
            "emb:type": "chip",
            "emb:dimensions": self.dim,
            "data_type": "float32",
            "emb:chip_layout": layout,
            "emb:fit_for_use": ["retrieval", "similarity_search"],
        }

    def footer(self) -> dict[str, Any]:
        """What stands in the parquet file under `emb`."""
        names = {"emb:model": self.model_name, "emb:source-data": self.source}
        return {**self.fields(), **names, "emb:quantization": self.quantization()}

    def quantization(self) -> dict[str, str]:
        """What the numbers went through; those in the file are float32 all the same."""
        if self.is_coded:
            return {"method": "scalar", "original_dtype": "float32", "quantized_dtype": "int8"}
        return {"method": "none", "original_dtype": "float32"}


def write_embedding_collection(folder: Path, file: str, facts: EmbeddingFacts) -> None:
    """Write `collection.json` and `item.json` beside the file of embeddings."""
    pystac = require("pystac", "geo")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    first, last = facts.times or (now, now)
    box = facts.box or _WHOLE_EARTH
    collection = pystac.Collection(
        id=facts.id,
        description=f"Image embeddings by {facts.model_name}, one vector for each image or tile",
        extent=pystac.Extent(pystac.SpatialExtent([list(box)]), pystac.TemporalExtent([[first, last]])),
        license="other",
        stac_extensions=[EXTENSION],
        extra_fields=facts.fields(),
    )
    links = [
        pystac.Link("emb:model", facts.model, "application/json", facts.model_name),
        pystac.Link("emb:source-data", facts.source, title="the images"),
    ]
    collection.add_links(links)
    item = pystac.Item(
        id=f"{facts.id}-embeddings",
        geometry=box_geometry(box),
        bbox=list(box),
        datetime=None,
        start_datetime=first,
        end_datetime=last,
        stac_extensions=[EXTENSION],
        properties={
            "created": f"{now.isoformat().replace('+00:00', 'Z')}",
            "pmpguard:time_known": facts.times is not None,
            "pmpguard:place_known": facts.box is not None,
            "emb:quantization": facts.quantization(),
            "emb:fit_for_use": facts.fields()["emb:fit_for_use"],
        },
        assets={ASSET: pystac.Asset(f"./{file}", media_type=_MEDIA_TYPE, roles=["data"])},
    )
    item.add_link(pystac.Link("emb:source-data", facts.source, title="the images"))
    layout = require("pystac.layout", "geo").CustomLayoutStrategy(
        item_func=lambda _, parent: str(Path(parent) / ITEM)
    )
    collection.set_self_href(str(folder / COLLECTION))
    collection.add_item(item, strategy=layout)
    collection.save(catalog_type=pystac.CatalogType.SELF_CONTAINED)
