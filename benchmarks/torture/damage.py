"""Damage to files: cuts, flips, repetitions, and values that somebody hostile would write."""

from __future__ import annotations

import json
import random
from typing import Any

HOSTILE_BYTES = (
    b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\0", b"\x1b]0;x\x07", b"9" * 5000, b"[" * 3000, b'"', b"{", b"}",
    b"[]", b"null", b"NaN", b"-1e999", b"\n", b"\r", b",", b"\t", b"../../etc/passwd", b"a" * 300, b"1e5",
    b"\xef\xbb\xbf", b'["a", 1]', b" ", b"0001-01-01T00:00:00+14:00", b"!!python/object/apply:os.getcwd []",
    b"&a [*a]", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80\x02c", b"-1", b"1e400", b"true",
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -(2**63), 10**400, 0.5, 1e308, float("nan"),
    float("inf"), "", "a", "../../../etc/passwd", "/etc/passwd", "\ud800", "\x1b[31m\x07", "x" * 5000, "\0",
    [], [[]], {}, {"a": 1}, [1, "a", None], "1", "-1", "1e999", "model.safetensors", ".", "..", [0] * 100,
)  # fmt: skip


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to three cuts, flips, insertions or repetitions."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        # the first kilobytes decide what the rest means, so half of all damage is done there
        reach = min(len(changed), 4096) if chance.random() < 0.5 else len(changed)
        start = chance.randrange(reach + 1)
        stop = min(len(changed), start + chance.choice((0, 1, 1, 2, 4, 8, 20)))
        kind = chance.randrange(5)
        if kind == 0:
            changed[start:stop] = chance.choice(HOSTILE_BYTES)
        elif kind == 1:
            changed[start:stop] = bytes(chance.randrange(256) for _ in range(stop - start))
        elif kind == 2:
            del changed[start:]
        elif kind == 3:
            changed[start:start] = changed[start : start + chance.randrange(200)]
        elif start < len(changed):
            changed[start] ^= 1 << chance.randrange(8)
    return bytes(changed)


def damaged_json(data: bytes, chance: random.Random) -> bytes:
    """Valid JSON in which one to three values are others, missing, or under another name."""
    value = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        value = _changed(value, chance)
    return json.dumps(value).encode()


def _changed(value: Any, chance: random.Random) -> Any:
    """One change somewhere below a value; deeper ones are as likely as shallow ones."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.08:
            return {key: one for key, one in value.items() if key != name}
        if kind < 0.12:
            return {**value, str(chance.choice(("extra", "", "\ud800", name.upper()))): value[name]}
        return {**value, name: _changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        kind = chance.random()
        if kind < 0.1:
            return value[:place] + value[place + 1 :]
        if kind < 0.15:
            return [*value, value[place]]
        return [_changed(one, chance) if number == place else one for number, one in enumerate(value)]
    return chance.choice(HOSTILE_VALUES)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Damage of either kind; a file that is no JSON gets the first."""
    if chance.random() < 0.6:
        try:
            return damaged_json(data, chance)
        except (ValueError, RecursionError):
            pass
    return damaged_bytes(data, chance)
