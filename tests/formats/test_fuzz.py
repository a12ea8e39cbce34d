"""For any input, gpt.formats raises only GptError, and uses little memory."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError
from gpt.extract.contents import Opener
from gpt.formats import cubin
from gpt.formats.image import find_image
from gpt.formats.ptxtext import PtxTarget, find_head, find_text
from gpt.formats.source import Source
from tests.formats import forge
from tests.formats.mutate import mutants
from tests.formats.samples import ONE, image, region
from tests.tiers import examples, full

fuzz = settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))


def read(data, scan=True):
    """Read a file as gpt-extract does; return the number of its elements, or None if it's rejected."""
    try:
        found = find_image(Source("file", data))
        if found is None:
            return None
        opener = Opener(found.source)
        opened = [opener.open(placed, keep=True) for placed in found.iter_elements(scan)]
        found.find_foreign()
        for item in opened:
            if item.placed.element.type == "cubin":
                cubin.find_ptx(item.data)
        return len(opened)
    except GptError as error:
        assert error.fact
        assert error.status in (1, 3)
        return None


@pytest.mark.parametrize(
    "name",
    ["zstd", "archive", "cubin", *map(full, ["lz4", "relocatable", "object_", "fatbin", "scattered", "outside"])],
)
def test_mutants_of_real_files(sample, name):
    data = sample(name).read_bytes()
    complete = read(data)
    survived = sum(read(mutant) == complete for mutant in mutants(data, name, 250))
    assert survived  # changes of names or padding do no harm


@fuzz
@given(
    st.binary(max_size=500),
    st.sampled_from([b"", b"!<arch>\n", b"\x7fELF\2\1\1", b"\x50\xed\x55\xba\1\0\x10\0", b"\x10\xff\x10\xad"]),
)
def test_bytes(data, start):
    read(start + data)


u16, u32, u64 = (st.one_of(st.integers(0, 200), st.integers(0, (1 << bits) - 1)) for bits in (16, 32, 64))


@st.composite
def elements(draw):
    payload = draw(st.binary(max_size=80))
    fields = draw(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from([0, 1, 2, 8, 9]),
                "flags": st.sampled_from([0x11, 0x2011, 0x8011, 0xA011, 0x100011, 0x200011]),
                "packed": st.one_of(st.just(len(payload)), u32),
                "unpacked": st.one_of(st.integers(0, 1000), u64),
                "header": st.one_of(st.just(64), u32),
                "size": st.one_of(st.none(), u64),
                "arch": st.one_of(st.just(90), u32),
            }
        )
    )
    return forge.element(payload, **fields)


@fuzz
@given(
    st.lists(st.one_of(elements(), st.binary(max_size=20), st.just(bytes(8))), max_size=6), st.one_of(st.none(), u64)
)
def test_fatbins(parts, size):
    read(forge.region(b"".join(parts), size))


@fuzz
@given(
    st.sampled_from([1, 2, 3]),
    st.tuples(u64, u64, u64),
    st.lists(st.tuples(u16, u16, st.integers(0, 1), u64, u64, u64, u64), max_size=3),
    st.binary(max_size=300),
)
def test_offload_binaries(version, fields, entries, rest):
    head = struct.pack("<4sIQQQ", b"\x10\xff\x10\xad", version, *fields)
    read(head + b"".join(struct.pack("<HHIQQQQ", *entry) for entry in entries) + rest)


@fuzz
@given(st.lists(st.sampled_from([
    ".version 8.0", "\n", " ", ".target sm_90", ".entry f(", ")", "{", "}", ";", ".global .u32 x", '"', "//", "/*",
    "*/", ".file 1 ", ".address_size 64", "\0", ".section .debug_str", "\x7f", ".func", "ret;",
]), max_size=40))  # fmt: skip
def test_ptx_in_a_program(parts):
    data = "".join(parts).encode()
    if (at := data.find(b".version")) >= 0:
        text, read_bytes = find_text(Source("x", data), at, 0, len(data))
        assert read_bytes <= len(data)
        if text:
            assert 0 <= text.start <= at < text.end <= len(data)
            assert b"\0" not in data[text.start : text.end]


@fuzz
@given(
    st.sampled_from([62, 183, 190]),
    st.fixed_dictionaries({}, optional={"shoff": u64, "shnum": u16, "shstrndx": u16, "phoff": u64, "phnum": u16}),
    st.lists(st.tuples(u32, st.sampled_from([0, 1, 2, 3, 4, 7, 8]), u64, u64, u32), max_size=6),
    st.binary(max_size=300),
)
def test_elf_tables(machine, fields, sections, rest):
    table = b"".join(forge.section(n, t, offset=o, size=s, link=k) for n, t, o, s, k in sections)
    fields = {"shoff": 64, "shnum": len(sections), "shstrndx": 1, **fields}
    read(forge.elf_header(machine=machine, **fields) + table + rest)


@fuzz
@given(st.integers(0, 20), st.binary(max_size=100), u32, st.integers(0, 600), st.binary(min_size=8, max_size=8))
def test_cubins(symbols, names, name, at, change):
    data = bytearray(forge.cubin(symbols, names, name=name))
    at = min(at, len(data) - 8)
    data[at : at + 8] = change
    read(bytes(data))


@fuzz
@given(st.lists(st.sampled_from([
    b".version 8.0\n", b".target sm_90\n", b".entry ", b".func ", b"(", b")", b"name", b" ", b"\n", b"//", b"/*", b"*/",
    b".visible ", b".global ", b".b32 x;", b"{", b"}", b'"', b"\\", b"\xff", b"\0",
]), max_size=60))  # fmt: skip
def test_ptx(parts):
    read(b".version 8.0\n" + b"".join(parts))


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (b".version 8.0\n.target sm_90a, texmode_independent\n", PtxTarget((8, 0), "sm_90a")),
        (
            b"\n// .version 1.0\n.version 8.0 /* .target sm_80 */ // .target sm_80\n.target sm_90",
            PtxTarget((8, 0), "sm_90"),
        ),
        (b"/**/.version\t12.34 .address_size 64", PtxTarget((12, 34), None)),
        (b".version 8", None),
        (b".target sm_90\n.version 8.0", None),
        (b"/* .version 8.0", None),
        (b"", None),
    ],
)
def test_the_head_of_ptx(text, head):
    assert find_head(text) == head


def test_dead_elements_are_stepped_over():
    data = bytearray(region(ONE))
    (size,) = struct.unpack_from("<Q", data, 16 + 8)
    from gpt.formats.fatbin import dead_header

    data[16:80] = dead_header(bytes(data[16:80]))
    data[80 : 80 + size] = b"\1" * size
    assert read(bytes(data)) == read(region(ONE)) - 1


def test_sections_that_overlap_are_refused(sample):
    """If two fatbin sections could have the same bytes, each element would be listed twice."""
    data = bytearray(sample("relocatable").read_bytes())
    tables = find_image(Source("x", bytes(data))).elf
    linked, parts = (tables.named(name)[0] for name in (".nv_fatbin", "__nv_relfatbin"))
    struct.pack_into("<QQ", data, tables.shoff + 64 * parts.index + 24, linked.offset, linked.size)
    with pytest.raises(GptError, match="overlap"):
        list(find_image(Source("x", bytes(data))).iter_elements())


def test_names_of_kernels_need_not_be_utf8():
    data = forge.cubin(1, b"\0\xff\xfe\0")
    assert cubin.parse_cubin(data).kernels == [{"name": "\udcff\udcfe", "size": 16}]


def test_find_ptx_in_a_cubin_of_triton():
    text = b".version 8.0\n.target sm_90\n.visible .entry k()\n{\nret;\n}\n"
    names = b"\0.nv_debug_ptx_txt\0"
    body = text.replace(b"\n", b"\0")
    offset = 64 + 3 * 64
    head = forge.elf_header(shoff=64, shnum=3, shstrndx=1, machine=190)
    tables = forge.section(0, 0) + forge.section(0, 3, offset=offset, size=len(names))
    tables += forge.section(1, 1, offset=offset + len(names), size=len(body))
    assert cubin.find_ptx(head + tables + names + body) == text
    assert cubin.find_ptx(image(ONE, "sm_90")) is None
