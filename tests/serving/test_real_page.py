"""The page in a real browser over a real index of tiles: found, lit word by word, drawn on the map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.page_browser import brightest, ids, opened, search, until
from helpers.running_server import running_server
from PIL import Image

from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import build_index
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.sources import open_source
from pmpguard.serving.app import create_app
from pmpguard.synthetic.scenes import synthetic_scenes

pytest.importorskip("fastapi", reason="the extra serve is not installed")

TEXT = "a green field beside a road"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searcher]:
    """Twelve drawn scenes with places and a share of clouds, and their index."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("real-page")
    world = synthetic_scenes(12)
    (folder / "images").mkdir()
    for place, image in enumerate(world.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / "images" / f"{place:02d}.png")
    places = list(range(12))
    columns = {
        "id": [f"tile {place}" for place in places],
        "image": [f"{place:02d}.png" for place in places],
        "west": [7.0 + 0.1 * place for place in places],
        "south": [46.0 + 0.05 * (place % 4) for place in places],
        "east": [7.08 + 0.1 * place for place in places],
        "north": [46.04 + 0.05 * (place % 4) for place in places],
        "cloud_cover": [5.0 * place for place in places],
    }
    pq.write_table(pa.table(columns), folder / "images" / "metadata.parquet")
    config = RetrieverConfig(dim=32, image_size=64, max_tokens=24)
    Retriever.create(config, world.table.captions).save(folder / "model")
    source = open_source(folder / "images")
    embed_source(source, folder / "model", folder / "emb", threads=0, progress=False)
    build_index(folder / "index", folder / "emb")
    yield Searcher.open(folder / "index")


def test_searched_lit_and_on_the_map(real, browser):
    expected = [hit.id for hit in real.search(Query(TEXT), k=20)]
    words = real.explain(expected[0], TEXT).words
    strongest = max(range(len(words)), key=lambda number: float(words[number].regions.max()))
    regions = words[strongest].regions  # (rows, columns)
    few = [hit.id for hit in real.search(Query(TEXT), k=20) if float(str(hit.metadata["cloud_cover"])) < 20]
    with running_server(create_app(real, refresh_seconds=100)) as address:
        for page in opened(browser, address):
            search(page, address, TEXT)
            assert ids(page) == expected
            until(
                page, "[...document.querySelectorAll('.card img')].slice(0, 4).every(i => i.naturalWidth > 0)"
            )
            assert page.locator("#map .footprint").count() == 12
            assert page.inner_text(f"#words .word >> nth={strongest}").strip() == words[strongest].word
            page.hover(f"#words .word >> nth={strongest}")
            until(page, "document.querySelectorAll('.card canvas.heat:not([hidden])').length === 12")
            x, y = brightest(page, ".card >> nth=0 >> canvas")
            row, column = divmod(int(regions.argmax()), regions.shape[1])
            at = (int(y * regions.shape[0]), int(x * regions.shape[1]))
            assert abs(at[0] - row) <= 1 and abs(at[1] - column) <= 1
            page.hover("#map .footprint[data-place='5']")
            assert page.get_attribute("#grid .marked", "data-place") == "5"
            page.click(".card >> nth=0")
            page.wait_for_selector("#viewer .word svg")
            page.keyboard.press("Escape")
            page.goto(f"{address}/?text=a+green+field+beside+a+road&where=cloud_cover%3C20")
            page.wait_for_selector(".card")
            assert ids(page) == few and page.locator("#map .footprint").count() == len(few) == 4
