"""Files at addresses: `s3://`, `gs://`, `hf://`, `http(s)://` through fsspec, and `file://` as what it is.

An address travels as a `Path` whose first part is the scheme (`Path("s3://a/b")` is `s3:/a/b`). Shards and
images are read where they lie, by ranges; tables and embeddings are copied to the cache folder once, and
again when they have changed; what a command writes to an address lies in the cache folder until it is there.

A connection that drops, a server's error and a body that is cut off are tried again; then the address is
named.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from pmpguard.errors import DataError, PmpguardError, require
from pmpguard.files import cache_folder, file_name_of, read_json, write_json
from pmpguard.posix import lock

SCHEMES = ("s3", "gs", "gcs", "hf", "http", "https")
ATTEMPTS = 4
PAUSE = 0.3  # seconds before the second attempt, doubled each time
BLOCK = 4 << 20  # bytes asked for at once where a file is read from front to back
KEPT_BLOCKS = 2
ABOUT = "about.json"
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "set HF_TOKEN",
}
REFUSED = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError")
Result = TypeVar("Result")


def is_remote(path: Path | str) -> bool:
    """Whether a path is an address.

    >>> is_remote(Path("s3://a/b.tar")), is_remote("https://a/b"), is_remote(Path("s3/b.tar"))
    (True, True, False)
    """
    scheme, colon, rest = str(path).partition(":")
    return bool(colon) and scheme in SCHEMES and rest.startswith("/")


def full_path(path: Path) -> Path:
    """The path with all links followed; an address as it is."""
    return path if is_remote(path) else path.resolve()


def url_of(path: Path | str) -> str:
    """
    >>> url_of(Path("s3://a/b.tar")), url_of("https://a/b")
    ('s3://a/b.tar', 'https://a/b')
    """
    scheme, _, rest = str(path).partition(":")
    return f"{scheme}://{rest.lstrip('/')}"


def shown(path: Path) -> str:
    """A path or an address as users write it.

    >>> shown(Path("s3:/a/b")), shown(Path("a/b"))
    ('s3://a/b', 'a/b')
    """
    return url_of(path) if is_remote(path) else str(path)


def as_path(given: str | Path) -> Path:
    """A path or an address as a `Path`; `file://` addresses are plain paths.

    >>> as_path("file:///data/a%20b.csv"), as_path("s3://a/b")
    (PosixPath('/data/a b.csv'), PosixPath('s3:/a/b'))
    """
    text = str(given)
    if not text.startswith("file:/"):
        return Path(text)
    return Path(unquote(urlsplit(text).path))


@cache
def filesystem(scheme: str) -> Any:
    """What fsspec has for a scheme; listings are not kept, for others may write there."""
    fsspec = require("fsspec", "remote")
    if scheme in ("http", "https"):
        require("aiohttp", "remote")
    elif scheme == "s3":
        require("s3fs", "remote")
    try:
        settings = {"use_listings_cache": False} if scheme != "hf" else {}
        return fsspec.filesystem(scheme, **settings)
    except ImportError as error:
        raise PmpguardError(f"{scheme}:// needs another package ({error})", fix="install it") from error


def tried(url: str, work: Callable[[Any], Result]) -> Result:
    """What `work` makes of the filesystem, tried again where the connection fails."""
    scheme = url.partition(":")[0]
    files = filesystem(scheme)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            return work(files)
        except PmpguardError:
            raise
        except FileNotFoundError as error:
            raise DataError(f"{url}: not found", fix="check the address") from error
        except PermissionError as error:
            raise DataError(
                f"{url}: access denied ({one(error)})",
                fix=CREDENTIALS.get(scheme, "check that you may read it"),
            ) from error
        except Exception as error:  # of many libraries: botocore, aiohttp, google, requests
            if type(error).__name__ in REFUSED:
                raise DataError(
                    f"{url}: no credentials ({one(error)})",
                    fix=CREDENTIALS.get(scheme, "give a public address"),
                ) from error
            last = error
    raise DataError(
        f"{url}: failed {ATTEMPTS} times, at last with {type(last).__name__} ({one(last)})",
        fix="check the connection and run this again; what was done so far is kept",
    ) from last


def one(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def remote_version(url: str) -> tuple[int, int]:
    """The size of a file and a number that another content changes, asked for once in a process."""
    return _version(url)


def version_now(url: str) -> tuple[int, int]:
    """The same, asked anew."""
    return _version.__wrapped__(url)


def forget_versions() -> None:
    """Ask anew."""
    _version.cache_clear()


def require_version(url: str, version: tuple[int, int]) -> None:
    """Stop where an address no longer holds what it held."""
    if version_now(url) != version:
        forget_versions()
        raise DataError(
            f"{url}: changed while it was read", fix="wait until it is whole, then run this again"
        )


@lru_cache(maxsize=100_000)
def _version(url: str) -> tuple[int, int]:
    about = tried(url, lambda files: files.info(url))
    if about.get("type") == "directory" or about.get("size") is None:
        raise DataError(f"{url}: no file with a known size", fix="check the address")
    names = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "last_commit", "sha256")
    mark = next((str(about[name]) for name in names if about.get(name)), "")
    digest = hashlib.blake2b(mark.encode(), digest_size=7).digest()
    return int(about["size"]), int.from_bytes(digest, "little")


class Source:
    """A file at an address."""

    def __init__(self, url: str, size: int | None = None) -> None:
        self.url = url
        self.size = remote_version(url)[0] if size is None else size

    def read_range(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, fewer where the file ends; a body cut off is asked for again."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""

        def ask(files: Any) -> bytes:
            data: bytes = files.cat_file(self.url, start=start, end=stop)
            if len(data) != stop - start:
                raise ConnectionError(f"{len(data):,} of {stop - start:,} bytes came")
            return data

        return tried(self.url, ask)

    def stream(self) -> BinaryIO:
        return io.BufferedReader(_Blocks(self), BLOCK)


class _Blocks(io.RawIOBase):
    """A remote file as a seekable stream, a block at a time."""

    def __init__(self, source: Source) -> None:
        self.source, self.place = source, 0
        self.blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.source.size}[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: Any) -> int:
        number, within = divmod(self.place, BLOCK)
        if number not in self.blocks:
            self.blocks[number] = self.source.read_range(number * BLOCK, (number + 1) * BLOCK)
            while len(self.blocks) > KEPT_BLOCKS:
                self.blocks.popitem(last=False)
        data = self.blocks[number][within : within + len(buffer)]
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


def remote_files(path: Path) -> list[Path]:
    """The files an address means: itself, those of a folder, or those of a pattern, in order."""
    url = url_of(path)

    def ask(files: Any) -> list[str]:
        if any(symbol in url for symbol in "*?["):
            return [str(name) for name in files.glob(url)]
        if url.startswith("http") or files.isfile(url):
            return [url]
        return [entry["name"] for entry in files.ls(url, detail=True) if entry["type"] == "file"]

    scheme = url.partition(":")[0]
    names = sorted(name if "://" in name else f"{scheme}://{name}" for name in tried(url, ask))
    if not names:
        raise DataError(f"{url}: no files", fix="check the address")
    return [Path(name) for name in names]


def exists(path: Path) -> bool:
    url = url_of(path)
    return bool(tried(url, lambda files: files.exists(url)))


def read_whole(path: Path, most: int) -> bytes:
    """A small file."""
    source = Source(url_of(path))
    if source.size > most:
        raise DataError(f"{source.url}: {source.size:,} bytes, over {most:,}", fix="make it smaller")
    return source.read_range(0, source.size)


def local_file(path: Path) -> Path:
    """A copy in the cache folder of what lies at an address, made anew where that has changed.

    A copy that was broken off goes on where it stopped.
    """
    if not is_remote(path):
        return path
    url = url_of(path)
    folder = cache_folder("remote") / file_name_of(url)
    target = folder / path.name
    with _held(folder):
        version = version_now(url)
        about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        if about.get("version") == list(version) and target.is_file() and target.stat().st_size == version[0]:
            return target
        source = Source(url, version[0])
        begun = folder / f"{version[1]:x}.part"
        for other in set(folder.glob("*.part")) - {begun}:
            other.unlink()
        with begun.open("ab") as stream:
            while (place := stream.tell()) < source.size:
                stream.write(source.read_range(place, place + BLOCK))
        try:
            require_version(url, version)
        except DataError:
            begun.unlink()
            raise
        begun.replace(target)
        write_json(folder / ABOUT, {"url": url, "version": version})
    return target


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """A folder of the cache for this process alone; others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as stream:
        lock(stream.fileno(), wait=True)
        yield


def local_folder_of(path: Path) -> Path:
    """A copy in the cache folder of a folder at an address, with the folders below it and nothing else."""
    if not is_remote(path):
        return path
    url = url_of(path).rstrip("/")
    listed = files_below(url)
    if not listed:
        raise DataError(f"{url}: no files", fix="check the address")
    folder = cache_folder("remote") / f"{file_name_of(url)}-folder"
    with _held(folder):
        for name in listed:
            inside, copy = folder / name, local_file(Path(f"{url}/{name}"))
            if not inside.exists() or not inside.samefile(copy):
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.unlink(missing_ok=True)
                os.link(copy, inside)
        for name in set(files_in(folder)) - set(listed):
            (folder / name).unlink()
    return folder


def files_below(url: str) -> list[str]:
    """The names of all files below an address, in order; none where nothing is there."""
    scheme = url.partition(":")[0]

    def ask(files: Any) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return list(files.find(url))
        return []

    whole = [name if "://" in name else f"{scheme}://{name}" for name in tried(url, ask)]
    names = sorted(name.removeprefix(url).lstrip("/") for name in whole)
    outside = [name for name in names if ".." in Path(name).parts]
    if outside:
        raise DataError(f"{url}/{outside[0]}: leads out of the folder", fix="rename it")
    return names


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder, but for our own, which are hidden."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = status.st_size, status.st_mtime_ns
    return found
