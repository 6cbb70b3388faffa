"""The samples of a tar shard: an image, its captions and what else is known of it.

A sample is a run of members that share a key (the name up to the first dot of its last part)::

    000017.jpg  000017.txt  000017.json          webdataset
    000017.img_content  000017.img_name  000017.caption          RS5M
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pmpguard.data.shards import IMAGE_ENDINGS, Member
from pmpguard.data.text_files import decode, parse_json
from pmpguard.errors import DataError

CAPTION_ENDINGS = ("caption", "txt", "text")
MAX_TEXT_BYTES = 1 << 20


def group_samples(members: Iterator[Member], shard: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Runs of members with one key, as (key, ending -> member)."""
    for key, run in itertools.groupby(members, lambda member: _key_and_ending(member.name)[0]):
        sample: dict[str, Member] = {}
        for member in run:
            ending = _key_and_ending(member.name)[1]
            if ending in sample:
                raise DataError(
                    f"{shard} sample {key!r}: two members end in .{ending}",
                    fix="give every sample its own key, without dots",
                )
            sample[ending] = member
        yield key, sample


def _key_and_ending(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return folder + slash + key, ending.lower()


def describe_sample(
    stream: BinaryIO,
    path: Path,
    key: str,
    members: dict[str, Member],
    image: str | None = None,
    captions: Sequence[str] = (),
) -> tuple[Member, tuple[str, ...], dict[str, Any]]:
    """A sample's image (not read), its captions and what its `.json` says besides.

    Captions come from `.json` when it has a list (`captions`, `caption`), else from `.caption`, `.txt` or
    `.text` (also `.caption.txt`), else from `caption` or `text` in `.json`; `.captions.json` may be a list.
    `captions` names fields of the `.json` or endings of members instead, and `image` the image's ending.
    """
    where = f"{path} sample {key!r}"
    wanted_images = IMAGE_ENDINGS if image is None else (image.lower(),)
    images = [
        member
        for ending, member in members.items()
        if ending in wanted_images or (image is None and ending.rpartition(".")[2] in IMAGE_ENDINGS)
    ]
    if len(images) != 1:
        fix = f"one of {', '.join(f'.{ending}' for ending in wanted_images)}; found .{', .'.join(members)}"
        raise DataError(f"{where}: {len(images)} images instead of one", fix=f"{fix}; --columns image=ENDING")
    kinds = ("json", *CAPTION_ENDINGS)
    wanted = {ending for ending in members if ending in captions or ending.rpartition(".")[2] in kinds}
    texts = {
        ending: decode(_read_text(stream, members[ending], where), f"{path} member {members[ending].name!r}")
        for ending in sorted(wanted | ({"img_name"} & members.keys()))
    }
    described = next(
        (ending for ending in ("json", *texts) if ending in texts and _ends(ending, "json")), None
    )
    metadata: Any = {}
    if described is not None:
        metadata = parse_json(texts[described], f"{path} member {members[described].name!r}")
    if isinstance(metadata, list) and all(isinstance(text, str) for text in metadata):
        metadata = {"captions": metadata}
    if not isinstance(metadata, dict):
        raise DataError(f"{where}: its .json is no object", fix='write {"caption": ...}')
    if "img_name" in texts:
        metadata["img_name"] = texts["img_name"]
    listed = _named_captions(metadata, texts, captions) if captions else _usual_captions(metadata, texts)
    if not isinstance(listed, list) or not listed:
        found = ", ".join([*(f".{ending}" for ending in members), *map(str, metadata)])
        fix = 'add a .txt, a .caption or a .json with "caption" or "text", or name it: --columns caption=NAME'
        raise DataError(f"{where}: no caption", fix=f"found {found}; {fix}")
    return images[0], tuple(listed), metadata


def _usual_captions(metadata: dict[str, Any], texts: dict[str, str]) -> Any:
    """The captions of a sample, taken out of its metadata."""
    written = [text for kind in CAPTION_ENDINGS for ending, text in texts.items() if _ends(ending, kind)]
    named = next((name for name in ("caption", "text") if name in metadata), None)
    listed = metadata.pop("captions", None)
    single = metadata.pop(named) if named and (named == "caption" or not written) else None
    if listed is not None:
        return listed
    return single if isinstance(single, list) else written[:1] or ([] if single is None else [single])


def _named_captions(metadata: dict[str, Any], texts: dict[str, str], names: Sequence[str]) -> list[Any]:
    """The captions in the fields or members a user named; one of them at least is there."""
    found: list[Any] = []
    for name in names:
        value = metadata.pop(name) if name in metadata else texts.get(name)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _ends(ending: str, kind: str) -> bool:
    return ending == kind or ending.endswith(f".{kind}")


def _read_text(stream: BinaryIO, member: Member, where: str) -> bytes:
    if member.size > MAX_TEXT_BYTES:
        raise DataError(f"{where}: {member.name} has {member.size:,} bytes, over {MAX_TEXT_BYTES:,}")
    stream.seek(member.data)
    return stream.read(member.size)
