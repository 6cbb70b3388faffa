"""Fixtures of the search tests: made once, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers.search_examples import embed, make_world

from pmpguard.search.index.changes import build_index


@dataclass(frozen=True)
class SmallSearch:
    """Where everything lies: dataset, model, embedding, index."""

    world: Path
    model: Path
    embedding: Path
    index: Path


@pytest.fixture(scope="session")
def small_search(tmp_path_factory: pytest.TempPathFactory) -> SmallSearch:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("search")
    world, model = make_world(folder)
    embed(world, model, folder / "embedding")
    build_index(folder / "index", folder / "embedding")
    return SmallSearch(world, model, folder / "embedding", folder / "index")
