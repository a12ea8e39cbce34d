"""gpt-extract's records for every kind of file in every codec, compared with cuobjdump and readelf."""

import pytest

from gpt.formats.image import parse_image
from gpt.formats.source import Source
from tests.formats import oracle
from tests.formats.samples import ARCHS, CODECS, MANY, ONE, VARIABLES, image
from tests.stages.tools import extract
from tests.tiers import every

WITH_FATBINS = [
    *CODECS, "suffix", "relocatable", "relocatable_first", "relr", "aligned", "pie", "fixed", "unwrapped", "arm",
    "small", "object_", "archive", "fatbin", "cubin",
]  # fmt: skip


@pytest.mark.parametrize("name", every(4, WITH_FATBINS))
def test_saves_what_cuobjdump_extracts(sample, name, tmp_path):
    path = sample(name)
    done = extract("--save", tmp_path / "ours", path)
    assert done.status == 0, done.err
    ours = {file.name: file.read_bytes() for file in (tmp_path / "ours").iterdir()}
    theirs = oracle.extracted(path, tmp_path / "theirs")
    assert sorted(ours) == sorted(theirs) == sorted(oracle.listed(path))
    assert ours == theirs


@pytest.mark.parametrize("name", [*CODECS, "relocatable", "archive", "fatbin", "cubin"])
def test_names_kernels_as_readelf(sample, name, tmp_path):
    path = sample(name)
    cubins = oracle.extracted(path, tmp_path)
    listed = [found for found in oracle.listed(path) if found.endswith(".cubin")]
    elements = [record for record in extract(path).kind("element") if record["type"] == "cubin"]
    assert len(cubins) >= len(listed) == len(elements)
    for file, element in zip(listed, elements, strict=True):
        kernels, functions = oracle.functions(tmp_path / file)
        assert [(symbol["name"], symbol["size"]) for symbol in element["kernels"]] == kernels
        assert [(symbol["name"], symbol["size"]) for symbol in element["functions"]] == functions
        assert element["size"] == len(cubins[file])


@pytest.mark.parametrize("codec", CODECS)
def test_elements_are_what_was_packed(sample, codec):
    records = extract("--payload", sample(codec)).kind("element")
    expected = [(source, arch) for source in (ONE, MANY, VARIABLES) for arch in ARCHS[source]]
    for record, (source, arch) in zip(records, expected, strict=True):
        if record["type"] == "cubin":  # fatbinary takes the comments out of PTX
            assert record["data"] == image(source, arch)
    assert [record["arch"] for record in records] == [arch.replace("compute", "sm") for _, arch in expected]
    assert [record["index"] for record in records] == list(range(len(expected)))
    assert len({record["region"] for record in records}) == 3
    for record in records:
        packed = codec in ("lz4", "zstd") or (codec == "balance" and record["type"] == "ptx")
        assert record["codec"] == ({"lz4": "lz4"}.get(codec, "zstd") if packed else "none")


def test_ptx_names_its_kernels_and_counts_variables(sample):
    for record in extract("--type", "ptx", sample("zstd")).kind("element"):
        cubin = next(
            other
            for other in extract("--type", "cubin", "--arch", "sm_90", sample("zstd")).kind("element")
            if other["region"] == record["region"]
        )
        assert {k["name"] for k in record["kernels"]} == {k["name"] for k in cubin["kernels"]}
        assert bool(record["variables"]) == bool(cubin["variables"])


def test_a_library_record_says_what_the_file_is(sample):
    from hashlib import sha256

    path = sample("balance")
    (record,) = extract(path).kind("library")
    assert record["size"] == path.stat().st_size
    assert record["sha256"] == sha256(path.read_bytes()).hexdigest()
    assert (record["type"], record["machine"]) == ("elf", "x86_64")
    assert extract(sample("arm")).kind("library")[0]["machine"] == "aarch64"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 9),
        (("--arch", "sm_75"), 3),
        (("--arch", "sm_75,sm_80"), 4),
        (("--type", "ptx"), 2),
        (("--type", "ptx,cubin", "--arch", "sm_90"), 5),
        (("--kernel", "_Z3one*"), 4),
        (("--kernel", "*one*", "--kernel", "*many*"), 7),
        (("--kernel", "*one*", "--type", "cubin", "--arch", "sm_90"), 1),
        (("--arch", "sm_90a"), 0),
    ],
)
def test_selects(sample, options, count):
    done = extract(*options, sample("balance"))
    assert len(done.kind("element")) == count
    assert len(done.kind("library")) == len(done.kind("library_end")) == 1


def test_result_does_not_depend_on_thread_count(sample):
    one, many = (extract("-j", jobs, sample("zstd")).records[1:] for jobs in ("1", "7"))
    assert one == many


def test_members_of_an_archive_are_named(sample):
    records = extract(sample("archive")).kind("element")
    assert [record["member"] for record in records] == ["one.o"] * 4 + ["a_name_that_is_much_longer_than_sixteen.o"] * 3
    data = sample("archive").read_bytes()
    for record in records:  # offsets are offsets in the archive
        if record["codec"] == "none":
            assert data[record["offset"] + record["header_size"] :].startswith(b"\x7fELF")


def test_relocatable_code_is_distinguished_from_linked_code(sample):
    sections = [record["section"] for record in extract(sample("relocatable")).kind("element")]
    assert sections == [".nv_fatbin"] * 2 + ["__nv_relfatbin"] * 4


def test_scan_finds_what_lies_elsewhere(sample):
    usual, all_ = (extract(*options, sample("scattered")).kind("element") for options in ((), ("--scan",)))
    assert {record["section"] for record in usual} == {".nv_fatbin"}
    odd = [record for record in all_ if record["section"] == ".rodata"]
    assert [record for record in all_ if record not in odd] == [
        {**record, "index": record["index"] + len(odd)} for record in usual
    ]
    assert [record["type"] for record in odd] == ["cubin", "cubin", "cubin", "ptx", "cubin"]
    bare = odd[-1]
    data = sample("scattered").read_bytes()
    assert bare["header_size"] == 0
    assert data[bare["offset"] : bare["offset"] + bare["size"]] == image(MANY, "sm_90")
    assert [kernel["name"] for kernel in odd[0]["kernels"]] == [kernel["name"] for kernel in odd[3]["kernels"]][::-1]


def test_scan_finds_nothing_where_nothing_is(sample):
    done = extract("--scan", sample("plain"))
    assert done.status == 1
    assert "no GPU code anywhere" in done.err


@pytest.mark.parametrize("before", [0, (4 << 20) - 9, (4 << 20) - 3])
def test_scan_finds_ptx_that_a_program_holds_as_text(sample, tmp_path, before):
    """Rust and Julia programs contain such text, and it may cross a block boundary."""
    program = tmp_path / "program"
    elf = sample("plain").read_bytes()
    text = image(ONE, "compute_90").rstrip(b"\0")
    program.write_bytes(elf + bytes(before - len(elf) % 8) + text)
    (record,) = extract("--scan", "--payload", program).kind("element")
    assert (record["type"], record["arch"], record["header_size"]) == ("ptx", "sm_90", 0)
    assert record["offset"] == record["region"] == len(program.read_bytes()) - len(text)
    assert record["data"] == text
    assert [kernel["name"] for kernel in record["kernels"]] == [
        kernel["name"] for kernel in extract(sample("ptx")).kind("element")[0]["kernels"]
    ]


def test_scan_lists_ptx_of_a_fatbin_once(sample):
    names = [(record["offset"], record["section"]) for record in extract("--scan", sample("none")).kind("element")]
    assert names == [(record["offset"], record["section"]) for record in extract(sample("none")).kind("element")]


def test_ptx_records_hold_the_text(sample):
    (record,) = extract("--ptx", sample("ptx")).kind("ptx")
    assert record["data"] == image(ONE, "compute_90")
    assert len(extract("--ptx", sample("zstd")).kind("ptx")) == 2


@pytest.mark.parametrize("name", ["pie", "fixed", "balance", "object_"])
def test_program_headers_and_sections_are_those_of_pyelftools(sample, name):
    from elftools.elf.elffile import ELFFile

    path = sample(name)
    ours = parse_image(Source(str(path), path.read_bytes())).elf
    with open(path, "rb") as file:
        theirs = ELFFile(file)
        fields = ("sh_addr", "sh_offset", "sh_size", "sh_link", "sh_entsize", "sh_flags")
        assert [(s.name, s.addr, s.offset, s.size, s.link, s.entsize, s.flags) for s in ours.sections] == [
            (s.name, *(s[field] for field in fields)) for s in theirs.iter_sections()
        ]
        fields = ("p_flags", "p_offset", "p_vaddr", "p_paddr", "p_filesz", "p_memsz", "p_align")
        assert [(s.flags, s.offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.align) for s in ours.segments] == [
            tuple(s[field] for field in fields) for s in theirs.iter_segments()
        ]
        note = theirs.get_section_by_name(".note.gnu.build-id")
        assert ours.build_id == (next(note.iter_notes())["n_desc"] if note else None)
