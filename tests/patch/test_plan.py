"""Check which spans are accepted, and how plans are made for files and spans that make no sense."""

import os
import random
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError
from gpt.formats.image import find_image
from gpt.formats.source import Source
from gpt.patch.compact import plan_compact
from gpt.patch.cuts import CannotCompact
from gpt.patch.plan import Copy, Data, Fill, find_doomed, plan_in_place
from gpt.patch.write import check_output, written
from gpt.stream import records, wire
from tests.formats import forge
from tests.formats.mutate import mutants
from tests.formats.samples import ONE, region
from tests.stages.tools import MIB, extract, run
from tests.tiers import examples, full

MARK = 64  # bytes at the end of a region that lost something


def load(data):
    return find_image(Source("lib", data))


def rendered(image, plan):
    """Return the bytes that a plan makes."""
    out = b""
    for piece in plan.pieces:
        match piece:
            case Copy():
                out += image.source.pread(piece.start, piece.size)
            case Data():
                out += piece.data
            case Fill():
                out += bytes([piece.byte]) * piece.size
    return out


@pytest.fixture(scope="module")
def fatbin():
    """Return two regions of four elements each."""
    return load(region(ONE, "none") * 2)


@pytest.fixture(scope="module")
def elements(fatbin):
    return [placed.element for placed in fatbin.iter_elements()]


def doom(fatbin, *spans):
    doomed = find_doomed(fatbin, list(spans))
    return [n for n, element in enumerate(doomed.all) if element.offset in doomed.dead], doomed.parts


def test_a_payload_with_or_without_its_header(fatbin, elements):
    e = elements[1]
    assert doom(fatbin, (e.payload, e.end)) == ([1], [])
    assert doom(fatbin, (e.offset, e.end)) == ([1], [])


def test_several_in_a_row(fatbin, elements):
    assert doom(fatbin, (elements[0].payload, elements[2].end)) == ([0, 1, 2], [])
    assert doom(fatbin, (elements[2].payload, elements[2].end), (elements[0].offset, elements[0].end)) == ([0, 2], [])
    assert doom(fatbin, (elements[0].offset, elements[0].end), (elements[1].offset, elements[1].end)) == ([0, 1], [])


def test_parts_of_unpacked_data(fatbin, elements):
    e = elements[0]
    spans = [(e.payload + 64, e.payload + 72), (e.payload + 128, e.payload + 136)]
    assert doom(fatbin, *spans) == ([], spans)
    for mode in ("fill", "hole"):
        out = rendered(
            fatbin, plan_in_place(fatbin, find_doomed(fatbin, [(e.payload + 64, e.payload + 1024)]), mode, 1)
        )
        assert len(out) == fatbin.source.size
        assert load(out) is not None
    plan = plan_compact(fatbin, find_doomed(fatbin, [spans[0], (elements[1].payload, elements[1].end)]), 7)
    out = rendered(fatbin, plan)
    assert out[e.payload + 64 : e.payload + 72] == b"\7" * 8
    assert len(out) == fatbin.source.size - (elements[1].end - elements[1].offset) + MARK


BAD_SPANS = {  # functions of the file's size and its elements a, b, ...; the fourth is the last of its region
    "empty": lambda size, a, *rest: [(a.payload, a.payload)],
    "backwards": lambda size, a, *rest: [(a.end, a.payload)],
    "beyond the file": lambda size, *all_: [(all_[-1].payload, size + 1)],
    "far beyond the file": lambda size, *all_: [((1 << 64) - 8, (1 << 64) - 1)],
    "the header of a region": lambda size, a, *rest: [(0, a.end)],
    "over two regions": lambda size, a, b, c, d, e, *rest: [(d.payload, e.end)],
    "overlap": lambda size, a, b, *rest: [(a.payload, a.end), (a.payload + 8, b.end)],
    "twice": lambda size, a, *rest: [(a.payload, a.end), (a.payload, a.end)],
    "one in another": lambda size, a, b, *rest: [(a.payload, b.end), (b.payload, b.payload + 8)],
    "from one payload into the next": lambda size, a, b, *rest: [(a.end - 8, b.payload + 8)],
    "a part, and a part of the next header": lambda size, a, b, *rest: [(a.end - 8, b.offset + 8)],
    "a header alone": lambda size, a, *rest: [(a.offset, a.payload)],
    "a part of a header": lambda size, a, *rest: [(a.offset + 8, a.offset + 16)],
    "a part of a header and the payload": lambda size, a, *rest: [(a.offset + 8, a.end)],
    "a part of a header and several payloads": lambda size, a, b, *rest: [(a.payload - 1, b.end)],
    "the ELF header of a cubin": lambda size, a, *rest: [(a.payload, a.payload + 8)],
    "a cubin but for its magic number": lambda size, a, *rest: [(a.payload + 4, a.end)],
    "the section headers of a cubin": lambda size, a, *rest: [(a.payload + 3456, a.payload + 3457)],
    "the program headers of a cubin": lambda size, a, *rest: [(a.end - 8, a.end)],
    "below zero": lambda size, a, *rest: [(-8, a.end)],
    "a header and a part": lambda size, a, *rest: [(a.offset, a.payload + 8)],
}


@pytest.mark.parametrize("name", BAD_SPANS)
def test_spans_that_are_refused(fatbin, elements, name):
    with pytest.raises(MalformedError, match=r"lib\+0x"):
        find_doomed(fatbin, BAD_SPANS[name](fatbin.source.size, *elements))


def test_parts_of_packed_data_are_refused():
    image = load(region(ONE, "zstd"))
    element = next(image.iter_elements()).element
    with pytest.raises(MalformedError, match="cuts through an element"):
        find_doomed(image, [(element.payload, element.end - 8)])


def test_a_span_may_cover_a_dead_element(fatbin, elements):
    e = elements[0]
    filled = load(rendered(fatbin, plan_in_place(fatbin, find_doomed(fatbin, [(e.payload, e.end)]), "fill", 1)))
    doomed = find_doomed(filled, [(e.payload, e.end), (elements[1].offset, elements[1].end)])
    assert len(doomed.kept) == len(elements) - 2
    out = rendered(filled, plan_in_place(filled, doomed, "fill", 9))
    assert out[e.offset : e.end] == filled.source.pread(e.offset, e.end - e.offset)  # unchanged


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_spans(fatbin, data):
    """Spans are accepted or rejected. Accepted ones change nothing else in the file."""
    image = fatbin
    elements = [placed.element for placed in image.iter_all()]
    edges = [0, image.source.size, *(n for e in elements for n in (e.offset, e.payload, e.end))]
    offset = st.sampled_from(edges) | st.integers(-8, image.source.size + 8) | st.integers(0, 1 << 64)
    spans = data.draw(st.lists(st.tuples(offset, offset), max_size=5))
    try:
        doomed = find_doomed(image, spans)
    except MalformedError:
        return
    original = image.source.pread(0, image.source.size)
    for mode in ("fill", "hole"):
        out = rendered(image, plan_in_place(image, doomed, mode, 1))
        assert len(out) == len(original)
        changed = {at for start, end in doomed.changed for at in range(start, end)}
        assert all(a == b for at, (a, b) in enumerate(zip(original, out, strict=True)) if at not in changed)
        assert [p.element.offset for p in load(out).iter_elements()] == [e.offset for e in doomed.kept]
    out = rendered(image, plan_compact(image, doomed, 1))
    assert len(list(load(out).iter_elements())) == len(doomed.kept)


def patch_all(data, folder, spans):
    """Run each mode on a file, up to the check. Only GptError and CannotCompact may be raised."""
    path = folder / "mutant"
    path.write_bytes(data)
    outcomes = set()
    with open(path, "rb") as file:
        for mode in ("hole", "compact"):
            try:
                image = find_image(Source(str(path), file.fileno()))
                if image is None:
                    return {"no image"}
                doomed = find_doomed(image, spans)
                plan = plan_compact(image, doomed, 1) if mode == "compact" else plan_in_place(image, doomed, mode, 1)
                with written(folder / "out", file.fileno(), plan) as output:
                    check_output(image, plan, output, "out")
                outcomes.add(mode)
            except GptError as error:
                assert error.status in (1, 3)
                outcomes.add(type(error).__name__)
            except CannotCompact as reason:
                assert str(reason)
                outcomes.add("CannotCompact")
            assert sorted(p.name for p in folder.iterdir()) in (["mutant"], ["mutant", "out"])
    return outcomes


@pytest.mark.parametrize(
    "name",
    ["zstd", "relocatable", *map(full, ["relr", "archive", "pie", "fixed", "symbols", "arm", "scattered", "outside"])],
)
def test_mutants_of_real_files(sample, name, tmp_path):
    data = sample(name).read_bytes()
    all_ = [placed.element for placed in load(data).iter_elements(scan=name in ("scattered", "outside"))]
    spans = [(e.payload, e.end) for e in all_[::2]]
    outcomes = set()
    for mutant in mutants(data, ("patch", name), 60 if len(data) < 300_000 else 30):
        outcomes |= patch_all(mutant, tmp_path, spans)
    assert "hole" in outcomes
    assert name != "outside" or "compact" in outcomes


def test_pointers_that_never_end(sample):
    """Packed relocations go backwards, or each covers all memory: the library gets holes, and planning doesn't take
    long.
    """
    data = bytearray(sample("relr").read_bytes())
    tables = load(bytes(data)).elf
    (section,) = tables.named(".relr.dyn")
    header = tables.shoff + 64 * section.index
    for words in ([0x4000, 0x4000] * 500_000, [1 << 62, *[(1 << 64) - 1] * 1_000_000]):
        table = struct.pack(f"<{len(words)}Q", *words)
        mutant = data + table
        struct.pack_into("<QQ", mutant, header + 24, len(data), len(table))
        elements = [placed.element for placed in load(bytes(mutant)).iter_elements()]
        with pytest.raises(CannotCompact):
            plan_compact(
                load(bytes(mutant)), find_doomed(load(bytes(mutant)), [(e.payload, e.end) for e in elements]), 1
            )


def segment(path, spans, **library):
    keys = {"path": str(path), "size": path.stat().st_size, **library}
    made = [wire.header("test", []), records.make("library", **keys)]
    made += [records.make("span", library=str(path), start=s, end=e, reason="test") for s, e in spans]
    made += [records.make("library_end", path=str(path)), records.make("end", records=0, status=0)]
    return b"".join(map(wire.pack, made))


HOSTILE = {
    "a hundred thousand spans": lambda e, size: [(n, n + 1) for n in range(600_000)],
    "the same span": lambda e, size: [(e[0].payload, e[0].end)] * 100_000,
    "bytes of an element": lambda e, size: [(at, at + 1) for at in range(e[1].payload + 64, e[1].payload + 3712, 2)],
    "a span of everything": lambda e, size: [(0, (1 << 64) - 1)],
}


@pytest.mark.parametrize("name", [*map(full, list(HOSTILE)[:-1]), list(HOSTILE)[-1]])
def test_hostile_spans(sample, name, tmp_path):
    path = sample("none")
    elements = [placed.element for placed in load(path.read_bytes()).iter_elements()]
    done = run(
        "gpt-patch", "-o", tmp_path, data=segment(path, HOSTILE[name](elements, path.stat().st_size)), measured=True
    )
    if name == "bytes of an element":
        assert done.status == 0, done.err
    else:
        assert done.status == 3
        assert done.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
    assert done.memory < 300 * MIB
    assert done.seconds < 20


@pytest.mark.full
def test_a_library_of_tiny_elements(tmp_path):
    """The library has more elements than any real one; every other one is cut."""
    path = tmp_path / "tiny.fatbin"
    body = forge.element(bytes(8), kind=9) * 60_000
    path.write_bytes(forge.region(body))
    spans = [(80 + 144 * n, 88 + 144 * n) for n in range(30_000)]
    done = run("gpt-patch", "-o", tmp_path / "out", data=segment(path, spans), measured=True)
    assert done.status == 0, done.err
    assert (tmp_path / "out" / "tiny.fatbin").stat().st_size == 16 + 30_000 * 72 + MARK
    assert done.memory < 300 * MIB
    assert done.seconds < 20


@pytest.mark.full
def test_mutants_through_the_pipeline(sample, tmp_path):
    """A few mutants are run as a user would: one process each, a documented exit status, no
    traceback, no files left.
    """
    rng = random.Random(7)
    data = sample("zstd").read_bytes()
    names = tmp_path / "names"
    names.write_text("_Z3onePf\n")
    for number, mutant in enumerate(mutants(data, "pipeline", 25)):
        if rng.random() < 0.3:
            mutant = mutant[: rng.randrange(len(mutant))]
        path = tmp_path / f"lib{number}.so"
        path.write_bytes(mutant)
    found = extract(*sorted(tmp_path.glob("*.so")), measured=True)
    located = run("gpt-locate", "--used", names, "--arch", "sm_90", data=found.out, measured=True)
    done = run("gpt-patch", "-o", tmp_path / "out", data=located.out, measured=True)
    for stage in (found, located, done):
        assert stage.status in (0, 1, 3), stage.err
        assert all(line.startswith("gpt-") for line in stage.err.splitlines()), stage.err
        assert "internal error" not in stage.err
        assert stage.memory < 300 * MIB
    written_ = {path.name for path in (tmp_path / "out").iterdir()}
    assert written_ == {os.path.basename(record["output"]) for record in done.kind("patched")}
