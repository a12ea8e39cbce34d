"""Neutrino's own analyses can read gpt-neutrino's folders: a table of the layouts that they expect, applied to our
results.

Neutrino's scripts can't be included, so their essentials are restated: the form of a record, and which units have one.
The first generation reads eight numbers, then `QQ` per section, and then consecutive records, ignoring the sections'
contents. The second reads `IIQ` per section, seeks to the offset, and divides by the bytes of a record.
"""

import struct
from typing import NamedTuple

import pytest

from gpt.analyze.block_sched import BlockSched
from gpt.analyze.dmat import Dmat
from gpt.analyze.gmem_bytes import GmemBytes
from gpt.analyze.tensorop_count import TensoropCount
from gpt.compat.neutrino.command import TOOLS
from gpt.probe.read.load import load_probes
from tests.trace import folders, forge


class Layout(NamedTuple):
    """The form of a record, how many threads a unit has, and whether it may have several records."""

    form: str
    divide: int
    several: bool = False


FIRST = {  # datamodel warp:16, thread:8, thread:8, thread:16:count, warp:16:count
    "block_sched": Layout("QII", 32),
    "gmem_bytes": Layout("II", 1),
    "tensorop_count": Layout("Q", 1),
    "dmat": Layout("QQ", 1, several=True),
    "program_progress": Layout("QII", 32, several=True),
}
SECOND = {  # the format that its reader generates for a map's fields: q for u64, I for others
    "block_sched": Layout("qII", 32),
    "gmem_bytes": Layout("II", 1),
    "tensorop_count": Layout("q", 1),
    "dmat": Layout("qq", 1, several=True),
}
NAMES = {"Q": "u64", "q": "u64", "I": "u32"}


def read_first(path, layout):
    """Return records by block and unit, as a first-generation script reads them."""
    with open(path, "rb") as file:
        *shape, _, count = struct.unpack("iiiiiiii", file.read(32))
        sections = [struct.unpack("QQ", file.read(16)) for _ in range(count)]
        size, found = struct.calcsize(layout.form), []
        for _ in range(shape[0] * shape[1] * shape[2]):
            found.append([])
            for _ in range(shape[3] * shape[4] * shape[5] // layout.divide):
                several = sections[0][0] // size if layout.several else 1
                found[-1].append([struct.unpack(layout.form, file.read(size)) for _ in range(several)])
    return found


def read_second(path, layout):
    """Return these records as a second-generation script reads them."""
    with open(path, "rb") as file:
        *shape, _, count = struct.unpack("iiiiiiii", file.read(32))
        sections = [struct.unpack("IIQ", file.read(16)) for _ in range(count)]
        bytes_, divide, offset = sections[0]
        file.seek(offset)
        size, found = struct.calcsize(layout.form), []
        for _ in range(shape[0] * shape[1] * shape[2]):
            found.append([])
            for _ in range(shape[3] * shape[4] * shape[5] // divide):
                found[-1].append([struct.unpack(layout.form, file.read(size)) for _ in range(bytes_ // size)])
    return found


def make_trace(name, layout, threads):
    """Return a trace with a launch of two blocks. Each unit saved one record, or as many as its number modulo 3."""
    fields = {f"f{number}": NAMES[letter] for number, letter in enumerate(layout.form)}
    level = "warp" if layout.divide == 32 else "thread"
    type_, capacity = ("log", 1000) if layout.several else ("array", 1)
    map_ = forge.probe_map(name, 1, type_, level, capacity, **fields)
    units, wanted, data = -(-threads // layout.divide), [], b""
    for unit in range(2 * units):
        count = unit % 3 if layout.several else 1
        records = [tuple(range(unit + 10 * nth + 1, unit + 10 * nth + 1 + len(fields))) for nth in range(count)]
        wanted.append(records)
        for record in records:
            body = struct.pack(f"<{layout.form}", *record).ljust(map_["stride"], b"\0")
            data += struct.pack("<Q", unit if layout.several else 1) + body
    if layout.several:
        data = struct.pack("<Q", sum(map(len, wanted))) + data
    function = forge.records.make("function", id=2, name="k")
    segment = forge.trace(function, map_, forge.kernel(5, 2, "k", 1), forge.probed(1, 5, 2, 2, threads),
                          forge.buffer(1, data))  # fmt: skip
    return segment, [wanted[:units], wanted[units:]]


@pytest.mark.parametrize(("name", "layout"), FIRST.items())
def test_tools_save_what_the_first_generation_reads(name, layout):
    """Our output has the form that the script of this name expects."""
    (map_,) = load_probes(TOOLS / f"{name}.toml").maps
    assert [field.type for field in map_.fields] == [NAMES[letter] for letter in layout.form]
    assert map_.size == struct.calcsize(layout.form) and (map_.capacity is None) == layout.several
    assert map_.level == ("warp" if layout.divide == 32 else "thread")


@pytest.mark.parametrize("threads", [64, 96])
@pytest.mark.parametrize(
    ("name", "layout", "second"),
    [(name, layout, second) for second, table in enumerate((FIRST, SECOND)) for name, layout in table.items()],
)
def test_results_are_read_right(name, layout, second, threads, tmp_path):
    segment, wanted = make_trace(name, layout, threads)
    size = {name: struct.calcsize(layout.form)}
    folder = folders.write(tmp_path, segment, TOOLS / f"{name}.toml", bool(second), **size)
    (path,) = (folder / "result").iterdir()
    found = (read_second if second else read_first)(path, layout)
    assert [[[r for r in unit if any(r)] for unit in block] for block in found] == wanted
    reader = next(folder.glob("kernel/*/read.py"))
    names = {}
    exec(reader.read_text(), names)
    _, sections, records = names["parse"](path)
    assert [len(block) for block in records] == [threads // layout.divide] * 2 and sections[0].offset == 48


SUMS = {  # an analysis of ours, applied to what the script reads
    "gmem_bytes": (GmemBytes, "gmem_bytes:{}", lambda found: sum(map(sum, found))),
    "tensorop_count": (
        TensoropCount,
        "tensorop_count:{}",
        lambda found: sum(max(found[at : at + 32])[0] for at in range(0, len(found), 32)),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_our_analysis_agrees(name, tmp_path):
    analysis, line, add_up = SUMS[name]
    segment, _ = make_trace(name, FIRST[name], 64)
    folder = folders.write(tmp_path, segment, TOOLS / f"{name}.toml", **{name: 8})
    (path,) = (folder / "result").iterdir()
    found = [record for block in read_first(path, FIRST[name]) for unit in block for record in unit]
    _, verdicts = folders.answer(analysis, folder)
    assert verdicts["kernels"][0] == line.format(add_up(found))


def test_our_block_sched_agrees(tmp_path):
    segment, _ = make_trace("block_sched", FIRST["block_sched"], 64)
    folder = folders.write(tmp_path, segment, TOOLS / "block_sched.toml", block_sched=16)
    (path,) = (folder / "result").iterdir()
    found = read_first(path, FIRST["block_sched"])
    rows, verdicts = folders.answer(BlockSched, folder)
    assert verdicts["kernels"][0].startswith(f"No.block:{len(found)} ")
    assert rows["launches"][0]["blocks"] == len(found)


def test_our_dmat_agrees(tmp_path):
    segment, wanted = make_trace("dmat", FIRST["dmat"], 64)
    folder = folders.write(tmp_path, segment, TOOLS / "dmat.toml", dmat=16)
    (path,) = (folder / "result").iterdir()
    found = [r for block in read_first(path, FIRST["dmat"]) for unit in block for r in unit if any(r)]
    rows, _ = folders.answer(Dmat, folder)
    assert sum(row["accesses"] for row in rows["accesses"]) == len(found) == sum(map(len, wanted[0] + wanted[1]))
