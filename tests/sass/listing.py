"""Parse nvdisasm's listing of a cubin: registers read, written and live at every instruction.

`nvdisasm -plr` prints a column for each register: `^` written, `v` read, `x` both, `:` live across.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpt.sass.arch import arch_of
from gpt.sass.code import Code
from gpt.sass.masks import Masks, Registers, pack
from gpt.sass.tables import Opcode, Table
from gpt.sass.words import CONTROL, bits, dump_words, guard_of, opcode_of
from tests import cuda

TARGETS = {0x947: "split", 0x547: "split", 0x944: "split", 0x348: "split", 0x945: "imm32"}
FILES = {"GPR": "R", "UGPR": "UR", "PRED": "P", "UPRED": "UP"}
_SECTION = re.compile(r"//-+ \.text\.(\S+) ")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x")


class Row(NamedTuple):
    """An instruction. `live` are the registers whose values before it are read later, or by the instruction itself."""

    offset: int
    text: str
    reads: Registers
    writes: Registers
    live: Registers


def list_cubin(nvdisasm: str, cubin: Path) -> dict[str, list[Row]]:
    """List every code section of a cubin, by kernel name."""
    command = [nvdisasm, "-plr", "-lrm", "narrow", "-c", "-hex"]

    def disassemble() -> bytes:
        return subprocess.run([*command, str(cubin)], stdout=subprocess.PIPE, check=True).stdout

    listing = cuda.keep((command, cubin.read_bytes()), disassemble).decode()
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        if start := _SECTION.search(line):
            lines = found.setdefault(start[1], [])
        lines.append(line)
    return {name: list(iter_rows(lines)) for name, lines in found.items()}


def iter_rows(lines: list[str]) -> Iterator[Row]:
    names: list[str] = []
    columns: list[tuple[str, int]] = []  # a register file, and the column of its register 0
    instruction: tuple[int, str] | None = None
    for line in lines:
        at = line.find("// |")
        if at < 0:
            continue
        if not names:
            names = [part.strip() for part in line[at + 4 :].rstrip("|").split("|")]
        elif not columns and "#" in line[at:]:
            found = re.finditer("#", line[at:])
            columns = [(FILES[name], at + one.start() + 2) for name, one in zip(names, found, strict=True)]
        elif start := _INSTRUCTION.match(line[:at]):
            instruction = int(start[1], 16), start[2]
        elif instruction and columns and line[:at].strip().startswith("/* 0x"):
            yield Row(*instruction, *_read_marks(line, columns))
            instruction = None


def _read_marks(line: str, columns: list[tuple[str, int]]) -> tuple[Registers, Registers, Registers]:
    reads, writes, live = {}, {}, {}
    for name, start in columns:
        masks = [0, 0, 0]
        for number, mark in enumerate(line[start : line.index("|", start)]):
            for role, marks in enumerate(("vx", "^x", ":vx")):
                masks[role] |= (mark in marks) << number
        reads[name], writes[name], live[name] = masks
    return Registers(**reads), Registers(**writes), Registers(**live)


def listed_code(words: list[int], rows: list[Row]) -> Code:
    """Return code whose instructions have the effects that nvdisasm lists, so that only control flow and liveness are
    tested.
    """
    table = Table(arch_of("sm_90"), "nvdisasm", {})
    for word, row in zip(words, rows, strict=True):
        name = re.split(r"[. ]", re.sub(r"^@!?U?P\w+ ", "", row.text))[0]
        number, barrier = opcode_of(word), 1 << bits(word, 16, 4)
        table.opcodes.setdefault(number, Opcode(number, name, False, TARGETS.get(number), ()))
        writes = pack(row.writes._replace(B=barrier if name == "BSSY" else 0))
        reads = pack(row.reads._replace(B=barrier if name == "BSYNC" else 0))
        decoder = table.decoder(word)
        decoder.relevant = ~CONTROL
        decoder.known[word & ~CONTROL] = Masks(reads, writes, ~writes if guard_of(word).always else -1, True)
    return Code(dump_words(words), table)
