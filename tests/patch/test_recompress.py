"""gpt-patch --recompress: output is smaller, and contains the same code for everything that unpacks it: us, cuobjdump,
the host code.
"""

import re
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats import fatbin
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from gpt.patch.recompress import can_recompress, recompress_all
from gpt.screen.units import human, percent
from tests import cuda
from tests.formats import oracle, samples
from tests.patch import checks
from tests.stages.tools import extract, located, patch, run
from tests.tiers import examples, full

LAYOUTS = [
    "lz4",
    *map(full, ("none", "zstd", "balance", "relr", "aligned", "pie", "fixed", "symbols", "arm", "relocatable")),
]


def payloads(path):
    """Return type, architecture, kernels and unpacked bytes of each element."""
    found = extract("--payload", path)
    assert found.status == 0, found.err
    return [(e["type"], e["arch"], e["kernels"], e["data"]) for e in found.kind("element")]


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_but_the_codec_changes(sample, name, tmp_path):
    if name == "relr" and not samples.linker_takes("-Wl,-z,pack-relative-relocs"):
        pytest.skip("the linker does not pack relative relocations")
    library = sample(name)
    done = run("gpt-patch", "--recompress", "-o", tmp_path / "out", data=extract(library).out)
    assert done.status == 0, done.err
    (record,) = done.kind("patched")
    patched = Path(record["output"])
    assert payloads(patched) == payloads(library)
    before, after = oracle.extracted(library, tmp_path / "a"), oracle.extracted(patched, tmp_path / "b")
    assert [before[n].rstrip(b"\0") for n in oracle.listed(library)] == [
        after[n].rstrip(b"\0") for n in oracle.listed(patched)
    ]
    checks.check_host(library, patched)
    if name in ("lz4", "none"):
        assert (record["mode"], record.get("reason")) == ("compact", None)
        assert patched.stat().st_size < library.stat().st_size - 4096
        new = extract(patched).kind("element")
        assert {e["codec"] for e in new} <= {"zstd", name}
        assert "zstd" in {e["codec"] for e in new}
        assert not any(e.dead for e in elements_of(patched)[1])  # nothing is lost, so no element is marked
    if name not in ("arm", "relocatable"):
        assert checks.call(patched, 3)[-1] == "42 two"
    rows = done.kind("recompressed")
    if record["mode"] == "compact":
        assert sum(r["size_before"] for r in rows) == record["gpu_before"]
        assert sum(r["size_after"] for r in rows) == record["gpu_after"]
        assert all(("reason" in r) == (r["size_before"] == r["size_after"]) for r in rows)
    again = run("gpt-patch", "--recompress", "--in-place", "-n", data=extract(patched).out)
    assert [r["mode"] for r in again.kind("patched")] == ["copy"]


def elements_of(path):
    with open(path, "rb") as file:
        source = Source(str(path), file.fileno())
        return source, [placed.element for placed in parse_image(source).iter_all()]


def test_with_cutting(sample, tmp_path):
    """The elements are the same as without --recompress, but smaller; lost kernels are marked."""
    library = sample("lz4")
    stream = located(library, "_Z3onePf\n")
    cut = patch(stream, "-o", tmp_path / "cut")
    both = patch(stream, "-o", tmp_path / "both", "--recompress=22")
    assert payloads(both["output"]) == payloads(cut["output"])
    assert both["gpu_after"] < cut["gpu_after"]
    assert any(e.dead for e in elements_of(both["output"])[1])
    kernels = located(library, "_Z4manyILi3EEvPfi", "--granularity", "kernel")
    trimmed = run("gpt-patch", "--recompress", "-o", tmp_path / "trimmed", data=kernels)
    (record,) = trimmed.kind("patched")
    (one,) = trimmed.kind("trimmed")
    assert one["size_after"] < one["size_before"]
    names = [k["name"] for e in extract(record["output"]).kind("element") for k in e["kernels"]]
    assert names == ["_Z4manyILi3EEvPfi"]


@pytest.mark.full
def test_options_and_files_that_stay(sample, tmp_path):
    library = sample("lz4")
    stream = extract(library).out
    for options, fact in (
        (["--recompress=0"], "0 is not in the range 1<=x<=22"),
        (["--recompress=23"], "23 is not in the range 1<=x<=22"),
        (["--recompress", "--mode", "hole"], "--recompress requires --mode compact"),
    ):
        done = run("gpt-patch", *options, "-o", tmp_path / "out", data=stream)
        assert (done.status, fact in done.err) == (2, True), done.err
    archive = sample("archive")
    record = patch(extract(archive).out, "--recompress", "-o", tmp_path / "out")
    assert (record["mode"], record["reason"]) == ("copy", "archive files cannot shrink, so nothing is recompressed")
    assert Path(record["output"]).read_bytes() == archive.read_bytes()
    copy = tmp_path / "copy.so"
    copy.write_bytes(library.read_bytes())
    assert run("gpt-patch", "--recompress", "--in-place", "--once", data=extract(copy).out).status == 0
    assert run("gpt-patch", "--restore", copy).status == 0
    assert copy.read_bytes() == library.read_bytes()
    table = run("gpt-patch", "--recompress", "--zstd-sizes", "--table", "-n", "-o", tmp_path / "x", data=stream).out
    assert "zstd 19 before" in table.decode()
    assert "lz4" in table.decode() and "offset" not in table.decode()


@pytest.mark.full
def test_verbose_gives_each_element_a_row(sample, tmp_path):
    library = sample("lz4")
    done = run(
        "gpt-patch", "--recompress", "--verbose", "--table", "-n", "-o", tmp_path / "x", data=extract(library).out
    )
    rows = run("gpt-patch", "--recompress", "-n", "-o", tmp_path / "x", data=extract(library).out).kind("recompressed")
    assert done.status == 0 and len(rows) == 9
    lines = {line.split()[0]: line for line in done.out.decode().splitlines() if line.startswith("0x")}
    assert list(lines) == [f"{row['offset']:#x}" for row in rows]
    for row in rows:
        line, before, after = lines[f"{row['offset']:#x}"], row["size_before"], row["size_after"]
        words = [row["arch"], row["type"], row["codec"], human(before), human(after)]
        left = "as it was" if "reason" in row else percent(before - after, before)
        assert re.fullmatch(r"\S+ +" + " +".join(map(re.escape, [*words, left])) + r" +[\d.,]+ ms", line.rstrip()), line


@pytest.mark.full
def test_zstd_sizes_count_no_compression(sample, tmp_path):
    """The cut code has the same size with zstd, whether or not it was compressed with zstd before."""
    sizes = {}
    for name in ("none", "lz4", "zstd"):
        record = patch(located(sample(name), "_Z3onePf\n"), "--zstd-sizes", "-o", tmp_path / name)
        sizes[name] = record["zstd_before"], record["zstd_after"]
        assert record["zstd_before"] <= record["gpu_before"]
        assert record["zstd_after"] <= record["gpu_after"]
        again = patch(located(sample(name), "_Z3onePf\n"), "--zstd-sizes", "--recompress", "-o", tmp_path / f"{name}z")
        assert (again["zstd_before"], again["zstd_after"]) == sizes[name]
        assert again["gpu_after"] == again["zstd_after"]
    assert sizes["none"] == sizes["lz4"]
    trims = located(sample("none"), "_Z4manyILi3EEvPfi", "--granularity", "kernel")
    record = patch(trims, "--zstd-sizes", "-o", tmp_path / "trims")
    assert record["zstd_after"] < record["gpu_after"]


def forged(tmp_path, kind, flags, payload, packed, unpacked, arch=90):
    """Return a file with one element whose header has these values."""
    padded = payload + bytes(-len(payload) % 8)
    head = fatbin.ELEMENT.pack(kind, 0x101, 64, len(padded), packed, 0, 0, 7, arch, 0, 0, flags, 0, unpacked)
    path = tmp_path / "forged.fatbin"
    path.write_bytes(fatbin.REGION.pack(fatbin.MAGIC, 1, 16, len(head + padded)) + head + padded)
    return path


def recompressed(path, folder):
    source, elements = elements_of(path)
    with open(path, "rb") as file:
        source = Source(str(path), file.fileno())
        return recompress_all(source, filter(can_recompress, elements), 19, 1, folder)


BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
HOSTILE = {
    "more comes out": (fatbin.FLAG_ZSTD, BOMB, len(BOMB), 1000),
    "less comes out": (fatbin.FLAG_ZSTD, BOMB[:1000], 1000, 128 << 20),
    "no zstd": (fatbin.FLAG_ZSTD, b"x" * 80, 80, 1000),
    "no lz4": (fatbin.FLAG_LZ4, b"\xff" * 80, 80, 1000),
    "truncated": (fatbin.FLAG_ZSTD, BOMB[:-1], len(BOMB) - 1, 64 << 20),
    "over the limit": (fatbin.FLAG_ZSTD, BOMB, len(BOMB), (256 << 20) + 1),
    "packed beyond its payload": (fatbin.FLAG_ZSTD, BOMB, len(BOMB) + 64, 64 << 20),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_elements(case, tmp_path):
    flags, payload, packed, unpacked = HOSTILE[case]
    path = forged(tmp_path, 2, flags | 0x11, payload, packed, unpacked)
    with pytest.raises(MalformedError):
        recompressed(path, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_corrupt_library_is_not_written(sample, tmp_path):
    """An element's first bytes, or all of its bytes, were damaged after extraction."""
    path = forged(tmp_path, 8, fatbin.FLAG_LZ4 | 0x11, b"\xff" * 4096, 4096, 100_000)
    found = extract(path)
    done = run("gpt-patch", "--recompress", "-o", tmp_path / "out", data=found.out)
    assert done.status == 3
    assert "does not unpack to 100000" in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_kinds_and_empty_elements_stay(tmp_path):
    path = forged(tmp_path, 77, 0x11, bytes(4096), 0, 0)
    assert recompressed(path, tmp_path) == []
    path = forged(tmp_path, 2, 0x11, b"", 0, 0)
    assert recompressed(path, tmp_path) == []


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=300), st.integers(0, 2000), st.sampled_from([0, 0x2000, 0x8000])), max_size=5
    ),
    st.sampled_from([1, 3, 19, 22]),
)
def test_any_bytes_come_back(parts, level):
    """Whatever the codec, unpacking gives the same bytes, sizes are right, and no element grows."""
    import tempfile

    import lz4.block

    body = b""
    wanted = []
    for text, times, flag in parts:
        data = text * (1 + times)
        data += bytes(-len(data) % 8)
        if not data:
            continue
        packed = data
        if flag == fatbin.FLAG_LZ4:
            packed = lz4.block.compress(data, store_size=False)
        elif flag:
            packed = zstandard.ZstdCompressor(level=1).compress(data)
        padded = packed + bytes(-len(packed) % 8)
        sizes = (len(packed), len(data)) if flag else (0, 0)
        body += fatbin.ELEMENT.pack(8, 0x101, 64, len(padded), sizes[0], 0, 0, 7, 90, 0, 0, 0x11 | flag, 5, sizes[1])
        body += padded
        wanted.append(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.fatbin")
        path.write_bytes(fatbin.REGION.pack(fatbin.MAGIC, 1, 16, len(body)) + body)
        _, before = elements_of(path)
        with open(path, "rb") as file:
            source = Source(str(path), file.fileno())
            done = recompress_all(source, before, level, 1, Path(folder))
        new = b""
        for one, element in zip(done, before, strict=True):
            if one.done.reason:
                new += path.read_bytes()[element.offset : element.end]
            else:
                assert one.done.size < element.end - element.offset
                assert one.done.size % 8 == 0
                new += one.done.header + bytes(one.done.payload)
        path.write_bytes(fatbin.REGION.pack(fatbin.MAGIC, 1, 16, len(new)) + new)
        with open(path, "rb") as file:
            source = Source(str(path), file.fileno())
            after = [placed.element for placed in parse_image(source).iter_all()]
            unpacker = fatbin.Unpacker()
            assert [bytes(unpacker.unpack(source, e)) for e in after] == wanted
        keys = [struct.unpack_from("<Q", one.done.header, 48) for one in done if one.done.header]
        assert set(keys) <= {(5,)}  # a header keeps what isn't a size or a codec


@pytest.mark.full
def test_order_and_parallel_work(sample, tmp_path):
    library = sample("none")
    with open(library, "rb") as file:
        source = Source(str(library), file.fileno())
        elements = [placed.element for placed in parse_image(source).iter_all()]
        one, four = (recompress_all(source, elements, 19, jobs, tmp_path) for jobs in (1, 4))
        assert [r.done.element for r in one] == elements
        assert [(r.done.header, bytes(r.done.payload)) for r in one] == [
            (r.done.header, bytes(r.done.payload)) for r in four
        ]
        assert all(r.time > 0 for r in four)


def test_fatbin_files(tmp_path):
    path = tmp_path / "x.fatbin"
    path.write_bytes(samples.region(samples.MANY, "none"))
    record = patch(extract(path).out, "--recompress", "-o", tmp_path / "out")
    assert record["mode"] == "compact"
    assert payloads(record["output"]) == payloads(path)
    assert cuda.tool("cuobjdump")
