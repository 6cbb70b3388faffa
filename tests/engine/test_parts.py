"""The plan of a job: parts, ranges, what is done already, and errors that travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmpguard.engine.parts import ALONE, Engine, Part, ranges, run_parts
from pmpguard.errors import ConfigError, DataError, PmpguardError

CALLS = "helpers.engine_calls"


def squares(folder: Path, count: int) -> list[Part]:
    return [
        Part({"number": number, "out": str(out)}, out)
        for number in range(count)
        for out in [folder / f"{number}.txt"]
    ]


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (10, 3), (5, 1)])
def test_ranges_cover_everything_once_in_order(count, size):
    found = ranges(count, size)
    assert [number for start, stop in found for number in range(start, stop)] == list(range(count))
    assert all(0 < stop - start <= size for start, stop in found)


def test_alone_every_part_is_called_here(tmp_path):
    run_parts(ALONE, f"{CALLS}:write_square", squares(tmp_path, 4))
    assert [int((tmp_path / f"{number}.txt").read_text()) for number in range(4)] == [0, 1, 4, 9]


def test_what_is_there_is_not_done_again(tmp_path):
    (tmp_path / "1.txt").write_text("kept")
    run_parts(ALONE, f"{CALLS}:write_square", squares(tmp_path, 3))
    assert (tmp_path / "1.txt").read_text() == "kept"


def test_an_error_of_a_part_is_raised_as_it_is(tmp_path):
    with pytest.raises(DataError, match=r"shard-0\.tar: cut off"):
        run_parts(ALONE, f"{CALLS}:refuse", squares(tmp_path, 2))


def test_scratch_stays_until_the_job_is_done(tmp_path):
    engine = Engine(2, scratch=tmp_path / "scratch")
    with pytest.raises(DataError), engine.files("job") as folder:
        (folder / "half").write_text("done")
        raise DataError("stopped")
    with engine.files("job") as again:
        assert (again / "half").read_text() == "done"
    assert not again.exists()


def test_a_cluster_needs_a_folder_that_its_nodes_share():
    with pytest.raises(ConfigError, match="no temporary folder"), Engine(2, "ray", "head:6379").files("job"):
        pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"name": "spark"}, "'spark' is unknown"),
        ({"address": "head:6379"}, "no engine"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Engine(**settings)


def test_an_error_names_what_to_do():
    with pytest.raises(PmpguardError) as caught:
        Engine(0)
    assert caught.value.fix == "give at least 1"
