"""Damage the machine code of cubins and the tables that describe it, and run gpt-sass-probe --explain on them.

Random changes to bytes mostly hit data that isn't read. Here a section is chosen by its name: instructions get other
opcodes, operands and targets, attributes other counts, symbols and section headers other sizes and offsets.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

from gpt.sass.tables import table_of
from gpt.sass.words import with_bits, with_target
from gpt.stream import records, wire
from tests.formats.samples import image
from tests.fuzz.engine import Sample, Target
from tests.fuzz.mutate import NUMBERS, mutate_bytes
from tests.fuzz.stages import call, fits, stage_main

KERNELS = Path(__file__).parents[1] / "sass" / "interp" / "kernels"
_HEADER, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_WAYS = ((), ("--registers", "8"), ("-p", "block_sched"), ("-p", "gmem_bytes", "--table"), ("-p", "dmat"))


def damage(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Change some instructions, attributes, symbols or headers of a cubin."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        sections = _sections(out)
        if not sections or rng.random() < 0.1:
            return mutate_bytes(rng, bytes(out), corpus)
        wanted = rng.choice((".text.", ".text.", ".nv.info", ".symtab", ".rela", "headers", ".nv."))
        if wanted == "headers":
            _header(rng, out, rng.choice(sections)[1])
            continue
        chosen = [one for one in sections if one[0].startswith(wanted) and one[3] >= 16 and one[2] + one[3] <= len(out)]
        if chosen:
            _, _, offset, size = rng.choice(chosen)
            change = {".text.": _word, ".symtab": _symbol}.get(wanted, _number)
            change(rng, out, offset, size)
    return bytes(out)


def _sections(data: bytes) -> list[tuple[str, int, int, int]]:
    """Return name, header offset, offset and size of each section, up to the first section that can't be read."""
    if len(data) < 64:
        return []
    (start,), (count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 60)
    if start + count * _HEADER.size > len(data) or names >= count:
        return []
    texts = _HEADER.unpack_from(data, start + names * _HEADER.size)[4]
    found = []
    for at in range(start, start + count * _HEADER.size, _HEADER.size):
        name, _, _, _, offset, size, *_ = _HEADER.unpack_from(data, at)
        end = data.find(b"\0", texts + name)
        found.append((data[texts + name : end].decode("latin-1"), at, offset, size))
    return found


def _word(rng: random.Random, out: bytearray, offset: int, size: int) -> None:
    at = 16 * rng.randrange(size // 16)
    word = int.from_bytes(out[offset + at : offset + at + 16], "little")
    table = table_of("sm_90")
    match rng.randrange(5):
        case 0:
            word = with_bits(word, 0, 12, rng.choice([*table.opcodes, rng.randrange(4096)]))
        case 1:
            word ^= 1 << rng.randrange(128)
        case 2:  # a jump: to itself, back, anywhere, out of the section
            target = rng.choice((at, 0, 16 * rng.randrange(size // 16), size, -16, 8, 1 << 40))
            form = rng.choice(("split", "split", "imm32"))
            opcode = rng.choice((0x947, 0x944, 0x348)) if form == "split" else 0x945
            word = with_bits(with_target(word, form, at, target & -4 if abs(target) < 1 << 30 else at), 0, 12, opcode)
        case 3:
            word = with_bits(word, rng.choice((16, 24, 32, 64)), 8, rng.choice((255, 254, 253, rng.randrange(256))))
        case _:
            word = rng.getrandbits(128)
    out[offset + at : offset + at + 16] = word.to_bytes(16, "little")


def _number(rng: random.Random, out: bytearray, offset: int, size: int) -> None:
    width = rng.choice((1, 2, 4, 4, 8))
    at = offset + rng.randrange(0, size - width + 1) // width * width
    value = rng.choice((*NUMBERS, rng.getrandbits(64), size, int.from_bytes(out[at : at + width], "little") + 1))
    out[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


def _symbol(rng: random.Random, out: bytearray, offset: int, size: int) -> None:
    if size < _SYMBOL.size:
        return
    at = offset + _SYMBOL.size * rng.randrange(size // _SYMBOL.size)
    fields = list(_SYMBOL.unpack_from(out, at))
    index = rng.randrange(len(fields))
    width = (4, 1, 1, 2, 8, 8)[index]
    fields[index] = rng.choice((*NUMBERS, rng.getrandbits(8), fields[index] + 16)) & (1 << 8 * width) - 1
    _SYMBOL.pack_into(out, at, *fields)


def _header(rng: random.Random, out: bytearray, at: int) -> None:
    fields = list(_HEADER.unpack_from(out, at))
    index = rng.randrange(len(fields))
    width = 4 if index in (0, 1, 6, 7) else 8
    value = rng.choice((*NUMBERS, fields[index] + 16, fields[index] - 16, fields[index] * 2, rng.getrandbits(16)))
    fields[index] = value & (1 << 8 * width) - 1
    _HEADER.pack_into(out, at, *fields)


def explain(data: bytes) -> None:
    """Run gpt-sass-probe --explain on a cubin that's claimed to be for sm_90."""
    sizes = {"region": 0, "index": 3, "offset": 0, "header_size": 0, "payload_size": len(data), "size": len(data)}
    keys = {"library": "one.so", "type": "cubin", "arch": "sm_90", **sizes, "codec": "none", "flags": 0, "kernels": []}
    element = records.make("element", **keys, functions=[], variables=0, data=data)
    stream = [wire.header("t", []), element, records.make("end", records=2, status=0)]
    args = fits(data, *_WAYS)
    call(stage_main("sass_probe"), "gpt-sass-probe", "--explain", *args, data=b"".join(map(wire.pack, stream)))


def seeds(sample: Sample) -> list[bytes]:
    """Return cubins with loops, calls, jump tables and barriers that are small enough to be damaged often."""
    return [sample("cubin").read_bytes(), image((KERNELS / "control.cu").read_text(), "sm_90")]


TARGET = Target("sass-explain", seeds, explain, damage, seconds=20, quick=60)
