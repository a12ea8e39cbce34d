"""Mutate inputs (bytes, text and records) at random, reproducibly for each generator."""

from __future__ import annotations

import copy
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]

MAX_INPUT = 1 << 20  # bytes that an input may grow to
NUMBERS = (0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 255, 256, 4095, 4096, 32767, 65535, 65536, (1 << 31) - 1, 1 << 31,
           (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)  # fmt: skip
WIDTHS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_TOKEN = re.compile(rb"\s+|[\w$%.@]+|.", re.DOTALL)


def _few(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 2, 3, 5, 8))


# Bytes


def mutate_bytes(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Change, copy or remove numbers, bits and runs of bytes, or insert some from another input."""
    out = bytearray(data)
    for _ in range(_few(rng)):
        rng.choice(_BYTES)(rng, out, corpus)
    return bytes(out[:MAX_INPUT])


def _at(rng: random.Random, out: bytearray) -> int:
    """Choose a place to change: mostly in the first bytes, which have headers, or in the last, which have tables."""
    size = len(out) or 1
    return rng.choice((rng.randrange(size), rng.randrange(min(size, 256)), size - 1 - rng.randrange(min(size, 4096))))


def _number(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    width = rng.choice(tuple(WIDTHS))
    at = _at(rng, out)
    at -= at % width if rng.random() < 0.9 else 0
    if at + width > len(out):
        return
    (old,) = struct.unpack_from(WIDTHS[width], out, at)
    new = rng.choice((
        rng.choice(NUMBERS), old + rng.randint(-16, 16), old * 2, old ^ 1 << rng.randrange(8 * width), len(out),
        rng.randrange(len(out)), rng.randrange(1 << 8 * width),
    ))  # fmt: skip
    struct.pack_into(WIDTHS[width], out, at, new & (1 << 8 * width) - 1)


def _bit(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    if out:
        out[_at(rng, out)] ^= 1 << rng.randrange(8)


def _span(rng: random.Random, size: int) -> slice:
    start = rng.randrange(size + 1)
    return slice(start, min(size, start + rng.choice((1, 4, 8, 16, 64, rng.randrange(1, size + 2)))))


def _cut(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    del out[_span(rng, len(out))]


def _copy(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus) if rng.random() < 0.3 else out
    part, at = bytes(other[_span(rng, len(other))]), _at(rng, out)
    if rng.random() < 0.5:
        out[at : at + len(part)] = part
    else:
        out[at:at] = part * rng.choice((1, 1, 2, 16))


def _fill(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    where = _span(rng, len(out))
    out[where] = bytes([rng.choice((0, 0xFF, 0x80, 0x20, rng.randrange(256)))]) * (where.stop - where.start)


def _end(rng: random.Random, out: bytearray, corpus: Sequence[bytes]) -> None:
    del out[_at(rng, out) :]


_BYTES = (_number, _number, _number, _number, _bit, _bit, _cut, _copy, _fill, _end)


# Text


def text_mutator(*words: bytes) -> Mutator:
    """Return a function that mutates text: it drops, doubles, swaps, nests or replaces tokens."""

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        if rng.random() < 0.1:
            return mutate_bytes(rng, data, corpus)
        parts = _TOKEN.findall(data) or [b""]
        for _ in range(_few(rng)):
            _change_text(rng, parts, words, corpus)
        return b"".join(parts)[:MAX_INPUT]

    return mutate


def _change_text(rng: random.Random, parts: list[bytes], words: Sequence[bytes], corpus: Sequence[bytes]) -> None:
    at = rng.randrange(len(parts) or 1)
    match rng.randrange(8):
        case 0:
            del parts[at : at + rng.choice((1, 1, 2, 8, 64))]
        case 1:
            parts[at:at] = parts[at : at + rng.choice((1, 2, 8, 64))] * rng.choice((1, 1, 2, 40))
        case 2:
            other = rng.randrange(len(parts) or 1)
            if parts:
                parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts[at : at + 1] = [rng.choice(words)]
        case 4:
            parts[at:at] = [rng.choice(words)] * rng.choice((1, 1, 1, 3, 2000))
        case 5:
            number = rng.choice(NUMBERS) * rng.choice((1, -1))
            form = rng.choice(("{}", "{:#x}", "{}e999", "1" + "{0}" * 50, "9" * 5000))
            parts[at : at + 1] = [form.format(number).encode()]
        case 6:
            others = _TOKEN.findall(rng.choice(corpus))
            start = rng.randrange(len(others) or 1)
            parts[at:at] = others[start : start + rng.choice((1, 4, 16, 100))]
        case _:
            parts[at:at] = [rng.choice((b"\0", b"\xff", b"\r", b"\xc2\x9b", b"\xe2\x80\xa8", b"\x1b[2J", b'"', b"'"))]


# Records

PATHS = ("", "fifo", "folder", "socket", "absent", "/dev/zero", "n\0ul", "../..", ".", "/", "x" * 300, "\udcff")
STRINGS = ("", "\0", "a\0b", "\x1b[2J", "\udcff\udcfe", "\x9b31m", "[red]", "x" * 70_000, "../../../x", "/", ".", "..",
           "fifo", "folder", "/dev/zero", "socket", "absent", "sm_90", "sm_0", "sm_99999999999999999999", "cubin",
           "ptx", "u64", "u8", "f64", "1.0", "\u202e", "a" * 255, "$int", "trace")  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _junk(rng: random.Random) -> Any:
    return rng.choice((
        None, True, False, -1, -(1 << 63), 1.5, float("nan"), float("inf"), b"", b"\0\xff", [], {}, [None], [[]],
        {"": {}}, {1: 2}, {"$b64": "="}, msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1, 2), _nested(400),
        rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(STRINGS), rng.choice(STRINGS), bytes(rng.randrange(100)),
    ))  # fmt: skip


def record_mutator(finish: Callable[[list[Any]], bytes]) -> Mutator:
    """Return a function that mutates streams: it drops keys, changes types of values, and moves records. `finish` packs
    them again.
    """

    def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        if rng.random() < 0.1:
            return mutate_bytes(rng, data, corpus)
        found = unpack(data)
        for _ in range(_few(rng)):
            _change_records(rng, found, corpus)
        try:
            return finish(found)
        except (ValueError, OverflowError, TypeError):
            return mutate_bytes(rng, data, corpus)

    return mutate


def unpack(data: bytes) -> list[Any]:
    """Yield the values of a stream until something isn't msgpack."""
    unpacker = msgpack.Unpacker(unicode_errors="surrogateescape", strict_map_key=False)
    unpacker.feed(data)
    found: list[Any] = []
    try:
        found.extend(value for value in unpacker if value != 0)
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return found


def pack(found: list[Any]) -> bytes:
    return b"".join(msgpack.packb(value, unicode_errors="surrogateescape") for value in found)


def _change_records(rng: random.Random, found: list[Any], corpus: Sequence[bytes]) -> None:
    if not found:
        found.append(_junk(rng))
    at = rng.randrange(len(found))
    match rng.randrange(12):
        case 0:
            del found[at]
        case 1:
            found.insert(rng.randrange(len(found) + 1), found[at])
        case 2:
            found.insert(rng.randrange(len(found) + 1), found.pop(at))
        case 3:
            others = unpack(rng.choice(corpus))
            if others:
                found.insert(at, rng.choice(others))
        case 4 if isinstance(found[at], dict):
            kinds = [value["kind"] for value in found if isinstance(value, dict) and "kind" in value]
            found[at] = {**found[at], "kind": rng.choice((*kinds, "x-mine", "sync", "diag", "chunk"))}
        case 5:
            paths = [value for value in found if isinstance(value, dict) and "path" in value]
            if paths:
                old, new = rng.choice(paths)["path"], rng.choice(PATHS)  # a library's path is in all records about it
                found[:] = [_with_path(value, old, new) for value in found]
        case _:
            found[at] = copy.deepcopy(found[at])
            _change_inside(rng, found, at)


def _with_path(value: Any, old: Any, new: str) -> Any:
    if not isinstance(value, dict):
        return value
    return value | {key: new for key in ("path", "library") if key in value and value[key] == old}


def _change_inside(rng: random.Random, holder: Any, key: Any) -> None:
    """Walk down a random path, and change the value there."""
    while True:
        value = holder[key]
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not keys or (rng.random() < 0.15 and not (isinstance(value, dict) and "kind" in value)):
            break
        holder, key = value, rng.choice(keys)
    old = holder[key]
    match rng.randrange(8):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 0:
            holder[key : key + 1] = []
        case 1 if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(old)] * rng.choice((1, 2, 300))
        case 2 | 3 if isinstance(old, bytes):
            holder[key] = mutate_bytes(rng, old, [old])
        case 2 | 3 | 4 if type(old) is int:
            holder[key] = max(0, min((1 << 64) - 1, old + rng.choice((1, -1, 8, -8, old, -old // 2, 1 << 32))))
        case 2 | 3 if isinstance(old, str) and old:
            other = rng.choice(STRINGS)
            holder[key] = rng.choice((old[: len(old) // 2], old + other, other + old, old + "\0", other))
        case 4 if isinstance(holder, dict):
            holder["x-" + str(key)] = _junk(rng)
        case _:
            holder[key] = _junk(rng)
