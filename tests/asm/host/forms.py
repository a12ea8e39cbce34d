"""Generate instructions in every form of the simulated device's table, and in similar forms, and see whether ptxas
accepts them.

A form is one line of PTX. ptxas reports every bad line of a module by its number, so one run judges thousands of
lines. `ours` asks the simulated device's back end in the same way.

    python -m tests.asm.host.forms sm_90 8.7 <lines.ptx

prints which of these lines ptxas and the simulated device accept. Lines can use the registers that `head` declares,
such as `%b32_1` and `%p1`, and its variables `shared_`, `global_` and `parameter_`.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpt.asm.host.module import ModuleWriter
from gpt.asm.host.opcodes import TABLE
from gpt.asm.host.table import TYPES, Row, Slot
from tests import cuda

REGISTERS = {  # register type -> prefix of the name
    **{f"{kind}{bits}": f"%{kind}{bits}_" for kind in "bus" for bits in (16, 32, 64)},
    **{type_: f"%{type_}_" for type_ in ("f32", "f64", "f16", "f16x2", "b128")},
    "pred": "%p",
}
OTHERS = [
    *(f"{name}3" for type_, name in REGISTERS.items() if type_ != "f16x2"),
    *(
        "1",
        "-1",
        "0f3F800000",
        "0d3FF0000000000000",
        "1.5",
        "{%b32_1, %b32_2}",
        "%tid.x",
        "%clock64",
        "[%b64_1]",
        "global_",
    ),
]
_ADDED = "rn rz rm rp rni rzi rmi rpi ftz sat relu satfinite approx full NaN abs cc wide lo hi noftz volatile"
TYPE_WORDS = [
    *(f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)),
    *("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2", "tf32", "pred", "u16x2", "e4m3x2", "b128"),
]
CRASH = "ptxas crashes"
BATCH = 1000  # lines of a module
OLDEST = 75  # the oldest GPU that ptxas generates code for; it accepts PTX for older ones
SAMPLE = 500  # maximum number of forms to try per row


def head(target: str, version: str) -> str:
    """Open a module with a kernel, and declare the registers that forms use."""
    registers = "".join(f".reg .{t} {name}<9>;" for t, name in REGISTERS.items())
    return (
        f".version {version}\n.target {target}\n.address_size 64\n.shared .align 16 .b8 shared_[4096];\n"
        f".global .align 16 .b8 global_[4096];\n"
        f".visible .entry k(.param .align 16 .b8 parameter_[256])\n{{ {registers}\n"
    )


def forms(limit: int = 500, only: str = "") -> list[str]:
    """List forms without duplicates: for each opcode up to `limit` forms from its rows, with a word changed, and with
    an operand changed.

    `only` names the opcodes, separated by commas; empty: all.
    """
    made: dict[str, None] = {}
    for opcode in only.split(",") if only else TABLE.rows:
        rows = TABLE.rows[opcode]
        choice = random.Random(opcode)
        chosen = [(row, words) for row in rows for words in _words(row, choice)]
        for group in (_plain(chosen), _with_other_words(rows, chosen), _with_other_operands(chosen, choice)):
            lines = sorted(set(group))
            made |= dict.fromkeys(lines if len(lines) <= limit else choice.sample(lines, limit))
    return list(made)


def forms_of(row: Row, limit: int) -> list[str]:
    """List up to `limit` forms of a row."""
    choice = random.Random(row.form)
    lines = [_line(row, words) for words in _words(row, choice)]
    return choice.sample(lines, limit) if len(lines) > limit else lines


def forms_of_all(limit: int) -> list[str]:
    """List forms of every row without duplicates: up to `limit`, and one with each of the row's words."""
    made: dict[str, None] = {}
    for row in itertools.chain(*TABLE.rows.values()):
        made |= dict.fromkeys(forms_of(row, limit))
        lists = [["", *words] if optional else words for words, optional in _lists(row)]
        for at, one in enumerate(lists):
            chosen = ([word if n == at else plain[0] for n, plain in enumerate(lists)] for word in one)
            made |= dict.fromkeys(_line(row, [word for word in words if word]) for words in chosen)
    return list(made)


_Chosen = list[tuple[Row, list[str]]]


def _plain(chosen: _Chosen) -> Iterator[str]:
    for row, words in chosen:
        yield _line(row, words)


def _with_other_words(rows: Sequence[Row], chosen: _Chosen) -> Iterator[str]:
    vocabulary = {word for row in rows for part, _ in row.parts for word in row.words.get(part, {part: ""})}
    added = [word for word in dict.fromkeys([*_ADDED.split(), *sorted(vocabulary)]) if word not in TYPES]
    for row, words in chosen[:: max(1, len(chosen) // 400)]:
        for at, word in enumerate(words):
            yield _line(row, [*words[:at], *words[at + 1 :]])
            if word in TYPE_WORDS or word in TYPES:
                for other in TYPE_WORDS:
                    yield _line(row, [*words[:at], other, *words[at + 1 :]])
        for word in added:
            if word not in words:
                yield _line(row, [word, *words])


def _with_other_operands(chosen: _Chosen, choice: random.Random) -> Iterator[str]:
    for row, words in choice.sample(chosen, min(len(chosen), 40)):
        operands = _operands(row, words)
        for at, other in itertools.product(range(len(operands)), OTHERS):
            yield _text(row, words, [*operands[:at], other, *operands[at + 1 :]])
        for count in range(len(operands)):
            yield _text(row, words, operands[:count])
        yield _text(row, words, [*operands, "%b32_3"])


def _words(row: Row, choice: random.Random) -> Iterator[list[str]]:
    """Yield the words of a row's forms: all of them or a sample."""
    lists = [["", *words] if optional else words for words, optional in _lists(row)]
    total = 1
    for one in lists:
        total *= len(one)
    if total <= SAMPLE:
        made: Iterable[Sequence[str]] = itertools.product(*lists)
    else:
        made = [
            [one[0] if not one[0] and choice.random() < 0.7 else choice.choice(one) for one in lists]
            for _ in range(SAMPLE)
        ]
        # Try each word alone, too: in a big product, hardly any sample contains a word that is rarely valid.
        for at, one in enumerate(lists):
            made += [[word if n == at else plain[0] for n, plain in enumerate(lists)] for word in one]
    for words in made:
        yield [word for word in words if word]


def _lists(row: Row) -> Iterator[tuple[list[str], bool]]:
    """Yield the words that each part of a form accepts, and whether the part is optional."""
    for part, optional in row.parts:
        yield list(row.words.get(part, {part: ""})), optional


def _text(row: Row, words: Sequence[str], operands: Sequence[str]) -> str:
    return f"{'.'.join([row.opcode, *words])} {', '.join(operands)};"


def _line(row: Row, words: Sequence[str]) -> str:
    return _text(row, words, _operands(row, words))


def _operands(row: Row, words: Sequence[str]) -> list[str]:
    types = [word for word in words if word in TYPES]
    width = next((int(word[1]) for word in words if word in ("v2", "v4", "v8")), 1)
    values = {}
    left = list(types)
    for part, _ in row.parts:
        if part in row.words and left and (left[0] in row.words[part] or part in "TD"):
            values[part] = left.pop(0)
    operands = []
    for number, slot in enumerate([*row.written[:1], *row.read]):
        operands.append(_operand(row, slot, values, number + 1, width))
    return operands


def _operand(row: Row, slot: Slot, values: dict[str, str], number: int, width: int) -> str:
    if slot.type == "address":
        return "[%b64_1]"
    if slot.type == "number" or slot.type.isdecimal():
        return slot.type if slot.type.isdecimal() else "16"
    first, *derived = slot.type.split(".")
    name = values.get(first) or (first if first in TYPES else "b32")
    type_ = TYPES.get(name, TYPES["b32"])
    for one in derived:
        try:
            type_ = getattr(type_, one)
        except KeyError:
            break
    name = type_.name
    if name not in REGISTERS:
        name = f"b{max(type_.bits, 16)}"
    if slot.count is not None:
        return "{" + ", ".join(f"{REGISTERS[name]}{n % 9}" for n in range(slot.count)) + "}"
    if width > 1 and slot.name in "db" and row.opcode in ("ld", "st", "ldu", "atom", "red"):
        return "{" + ", ".join(f"{REGISTERS[name]}{n % 9}" for n in range(width)) + "}"
    return f"{REGISTERS[name]}{number}"


def theirs(lines: Sequence[str], ptxas: str, target: str, version: str, folder: Path) -> list[str]:
    """Return ptxas's error for each line, or "" if it accepts the line. Some errors end a run early, and some lines
    crash ptxas.

    ptxas checks some things only in modules without errors, so it may accept a line among bad ones, but not alone.
    """
    start = head(target, version)
    first = start.count("\n") + 1
    path = folder / f"{target}_{version}.ptx"
    said = [""] * len(lines)
    parts = [(at, min(at + BATCH, len(lines))) for at in range(0, len(lines), BATCH)]
    while parts:
        begin, end = parts.pop()
        path.write_text(start + "\n".join(lines[begin:end]) + "\n}\n.end_of_forms\n")
        arch = f"-arch={target if int(''.join(filter(str.isdecimal, target))) >= OLDEST else f'sm_{OLDEST}'}"
        done = subprocess.run([ptxas, arch, str(path), "-o", "/dev/null"], capture_output=True, text=True)
        if done.returncode < 0:
            half = (begin + end) // 2
            if end - begin == 1:
                said[begin] = CRASH
            else:
                parts += [(begin, half), (half, end)]
            continue
        for number, kind, text in re.findall(r", line (\d+); (error|fatal)\s*: (.*)", done.stderr):
            at = int(number) - first + begin
            assert int(number) > 2, f".version {version}, .target {target}: {text}"  # nothing else would be checked
            if begin <= at < end:  # old versions refuse some of the registers
                said[at] = said[at] or text
                if kind == "fatal":
                    parts += [(at + 1, end)] if at + 1 < end else []
    return said


def ours(lines: Sequence[str], target: str, version: str) -> list[str]:
    """Return the simulated device's error for each line, or "" if it accepts the line."""
    start = head(target, version)
    code = ModuleWriter((start + "\n".join(lines) + "\nret; }\n").encode(), "forms")
    code.write()
    said = [""] * len(lines)
    first = start.count("\n") + 1
    for where, text in code.faults:
        number = int(where.rpartition(":")[2])
        said[number - first] = said[number - first] or text
    return said


def main() -> None:
    target, version = sys.argv[1:]
    lines = [line.strip() for line in sys.stdin if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        judged = theirs(lines, str(cuda.tool("ptxas")), target, version, Path(folder))
    for line, by_ptxas, here in zip(lines, judged, ours(lines, target, version), strict=True):
        print(f"{'differs' if bool(by_ptxas) != bool(here) else 'same':7}  {line}")
        print(f"         ptxas: {by_ptxas or 'takes it'}\n         here:  {here or 'takes it'}")


if __name__ == "__main__":
    main()
