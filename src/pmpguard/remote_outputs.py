"""What a command writes to an address: it lies in the cache folder until all of it has been sent."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmpguard.errors import ConfigError, DataError
from pmpguard.files import cache_folder, file_name_of
from pmpguard.remote import (
    BLOCK,
    files_below,
    files_in,
    is_remote,
    local_folder_of,
    read_whole,
    tried,
    url_of,
)

PROBE = ".pmpguard"


@contextlib.contextmanager
def output_folder(out: Path, mark: str, last: str, *, goes_on: bool) -> Iterator[Path]:
    """Where a command writes a folder: there, or in the cache folder until it has been sent.

    `mark` is the file that tells such a folder from others, and `last` the one that says it is whole; with
    `goes_on` the command goes on with what is there, else that is replaced. A command that was stopped, or
    could not send all of it, goes on with what is in the cache folder.
    """
    if not is_remote(out):
        yield out
        return
    url = url_of(out).rstrip("/")
    there = [name for name in files_below(url) if not Path(name).name.startswith(".")]
    if there and mark not in there:
        raise DataError(f"{url}: holds {there[0]} and no {mark}", fix="name a new address, or empty this one")
    require_writable_address(url)  # before the work, as all that may be wrong
    folder = cache_folder("outputs") / file_name_of(url)
    copied: dict[str, tuple[int, int]] = {}
    if there and goes_on:
        if not (folder / mark).is_file():
            shutil.copytree(local_folder_of(out), folder, dirs_exist_ok=True)
            copied = files_in(folder)
        elif read_whole(out / mark, BLOCK) != (folder / mark).read_bytes():
            raise DataError(
                f"{url}: {mark} is not the one of the work begun in {folder}",
                fix="name a new address, or remove that folder",
            )
    try:
        yield folder
    except BaseException:
        if copied and files_in(folder) == copied:
            shutil.rmtree(folder)
        raise
    _send(folder, url, there, copied, mark, last)
    shutil.rmtree(folder)


def require_writable_address(url: str) -> None:
    """Stop when nothing can be written to an address."""
    if url.startswith("http"):
        raise ConfigError(f"{url}: cannot be written to", fix="give an s3://, gs:// or hf:// address")
    tried(url, lambda files: files.pipe_file(f"{url}/{PROBE}", b"pmpguard writes here"))
    tried(url, lambda files: files.rm_file(f"{url}/{PROBE}"))


def _send(
    folder: Path, url: str, there: list[str], known: dict[str, tuple[int, int]], mark: str, last: str
) -> None:
    """Send what is not `known` to be there; what an earlier output has left in the same folders goes.

    Until the `last` file is back nobody takes what is there for whole.
    """
    found = files_in(folder)
    ours = {name.partition("/")[0] for name in found if "/" in name}
    stale = [name for name in there if "/" in name and name not in found and name.partition("/")[0] in ours]
    _remove(url, [last] if last in there else [])
    for name in sorted(found, key=lambda name: (name != mark, name)):
        if name != last and known.get(name) != found[name]:
            send_file(folder / name, f"{url}/{name}")
    _remove(url, stale)
    send_file(folder / last, f"{url}/{last}")


def _remove(url: str, names: list[str]) -> None:
    for name in names:
        tried(url, lambda files, name=name: files.rm_file(f"{url}/{name}"))  # type: ignore[misc]


def send_file(path: Path, url: str) -> None:
    def send(files: Any) -> None:
        files.put_file(str(path), url)
        size = files.info(url)["size"]
        if size != path.stat().st_size:
            raise ConnectionError(f"{size:,} of {path.stat().st_size:,} bytes arrived")

    tried(url, send)
