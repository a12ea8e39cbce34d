"""Real files with bytes and fields changed at random; the changes are the same for the same seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from gpt.formats import fatbin
from gpt.formats.image import find_image
from gpt.formats.source import Source

WIDTHS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


def structure(data: bytes) -> list[tuple[int, int]]:
    """Return the offset and size of each header and table. Changed bytes have the largest effect there."""
    places = [(0, min(64, len(data)))]
    image = find_image(Source("original", data))
    assert image
    for placed in image.iter_all(scan=True):
        element = placed.element
        places.append((element.region, fatbin.REGION.size))
        places.append((element.offset, element.header_size or 64))
        places.append((element.payload, 16))
    if image.elf:
        places.append((image.elf.shoff, 64 * len(image.elf.sections)))
        places.append((image.elf.phoff, 56 * len(image.elf.segments)))
        tables = (".rela.dyn", ".relr.dyn", ".symtab", ".nvFatBinSegment", ".shstrtab")
        places += [(section.offset, section.size) for section in image.elf.named(*tables)]
    if image.type == "cubin":
        (shoff,) = struct.unpack_from("<Q", data, 40)
        places.append((shoff, len(data) - shoff))
    return [(start, size) for start, size in places if size]


def mutants(data: bytes, seed: object, count: int) -> Iterator[bytes]:
    """Yield `count` versions of the file, each with one to four changes."""
    rng = random.Random(repr(seed))
    places = structure(data)
    for _ in range(count):
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            if rng.random() < 0.9:
                start, size = rng.choice(places)
            else:
                start, size = 0, len(out)
            _change(rng, out, start + rng.randrange(size))
        yield bytes(out)


def _change(rng: random.Random, out: bytearray, at: int) -> None:
    width = rng.choice(tuple(WIDTHS))
    at -= at % width
    if at + width > len(out):
        return
    (old,) = struct.unpack_from(WIDTHS[width], out, at)
    top = (1 << 8 * width) - 1
    new = rng.choice((
        0, 1, top, top >> 1, top - 7, old + 1, old - 1, old + 8, old - 8, old * 2, old ^ 1 << rng.randrange(8 * width),
        len(out), len(out) - 1, rng.randrange(len(out)), rng.randrange(top),
    ))  # fmt: skip
    struct.pack_into(WIDTHS[width], out, at, new & top)
