"""What the real geopandas makes of a GeoParquet file, as JSON: python tests/peers/geopandas_reads.py FILE

It needs geopandas, which the project's own environment must not have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

BOX = (0.0, 0.0, 40.0, 40.0)


def described(path: str) -> dict[str, Any]:
    import geopandas

    whole = geopandas.read_parquet(path)
    placed = whole[~whole.geometry.isna()]
    within = geopandas.read_parquet(path, bbox=BOX)
    bounds = placed.geometry.bounds
    return {
        "crs": str(whole.crs),
        "rows": len(whole),
        "valid": bool(placed.geometry.is_valid.all()),
        "counterclockwise": all(
            part.exterior.is_ccw
            for shape in placed.geometry
            for part in getattr(shape, "geoms", [shape])
            if part.geom_type == "Polygon"
        ),
        "bounds": {str(id): row for id, row in zip(placed["id"], bounds.to_numpy().tolist(), strict=True)},
        "in_box": sorted(str(id) for id in within["id"]),
    }


if __name__ == "__main__":
    print(json.dumps(described(sys.argv[1])))
