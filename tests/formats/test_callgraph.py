"""Code removed with unused kernels: compiled and linked cubins, with nvdisasm as oracle, and hostile tables."""

import io
import re
import struct
import time

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats.callgraph import KeptWhole, find_cut
from gpt.formats.cubin import parse_cubin
from tests import cuda
from tests.formats import forge, samples
from tests.patch.cubins import ARCHS, KERNELS, code_of, cut_out, damaged, forged
from tests.tiers import examples, full


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("used", [{"direct"}, {"pointer"}, {"alone"}, {"plain"}, {"direct", "alone"}, set(KERNELS)])
def test_functions_of_used_kernels_stay(arch, used):
    data = samples.linked(arch, samples.USERS, samples.FUNCTIONS)
    cut = find_cut(data, set(KERNELS) - used)
    _, gone = cut_out(data, cut)
    stay = used.union(*(KERNELS[name] for name in used))
    assert gone == set(KERNELS).union(*KERNELS.values()) - stay
    assert (cut.kernels, cut.functions) == (len(set(KERNELS) - used), len(gone - set(KERNELS)))
    assert cut.size == sum(end - start for start, end in cut.spans)


@pytest.mark.full
@pytest.mark.parametrize("arch", [full(ARCHS[0]), *ARCHS[1:]])
def test_nvdisasm_finds_all_that_kept_code_names(arch):
    """No symbol that nvdisasm prints as an operand in kept code belongs to removed code."""
    data = samples.linked(arch, samples.USERS, samples.FUNCTIONS)
    for used in KERNELS:
        left, gone = cut_out(data, find_cut(data, set(KERNELS) - {used}))
        text = cuda.disassemble(data)
        parts = re.split(r"^\s*\.section\s+\.text\.(\w+),.*$", text, flags=re.MULTILINE)
        code = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert set(code) == set(code_of(data))
        for name in set(code) - gone:
            named = set(re.findall(r"`\((\w+)\)|@srel\((\w+)\)|@[a-z]\w*@?\((\w+)\)", code[name]))
            assert not {n for group in named for n in group if n} & gone
        assert len(left) == len(data)


@pytest.mark.parametrize("arch", ARCHS)
def test_code_that_was_not_linked_holds_its_functions(arch):
    data = samples.image(samples.ONE, arch)
    cut = find_cut(data, {"_Z3twoPf"})
    assert (cut.kernels, cut.functions) == (1, 0)
    assert cut_out(data, cut)[1] == {"_Z3twoPf"}
    assert find_cut(cut_out(data, cut)[0], {"_Z3twoPf"}).spans == []  # nothing left to be cut
    assert find_cut(data, set()).spans == []
    assert find_cut(data, {"no such kernel"}).spans == []


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: samples.linked("sm_90", samples.TABLE), "variables hold addresses of functions"),
        (lambda: samples.image(samples.USERS, "sm_90", "-rdc=true"), "relocatable code"),
        (lambda: samples.image(samples.ONE, "sm_100"), "sections of type 0x7000.* are not understood"),
        (lambda: forge.cubin(3), "a kernel lies outside the code|no call graph"),
    ],
)
def test_cubins_that_cannot_be_cut_are_kept_whole(build, reason):
    with pytest.raises(KeptWhole, match=reason):
        find_cut(build(), {"apart", "plain", "_Z3twoPf", "a"})


def section(data, name):
    """Return the number of a section, and the offset of its header."""
    elf = ELFFile(io.BytesIO(data))
    index = elf.get_section_index(name)
    return index, elf.header["e_shoff"] + 64 * index


def with_callgraph(pairs):
    """Return the linked cubin with another call graph."""
    data = bytearray(samples.linked("sm_90", samples.USERS, samples.FUNCTIONS))
    _, header = section(data, ".nv.callgraph")
    body = b"".join(struct.pack("<II", *pair) for pair in pairs)
    data += bytes(-len(data) % 8)
    struct.pack_into("<QQ", data, header + 24, len(data), len(body))
    return bytes(data + body)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(0, 0xFFFFFFFF), (1 << 31, 1)], "beyond the symbol table"),
        ([(0, 0xFFFFFFFF), (1, 1 << 31)], "beyond the symbol table"),
        ([(1, 2)], "does not begin with a group"),
        ([], "does not begin with a group"),
        ([(0, 0xFFFFFFFF)] * 5, "more groups than are known"),
        ([(0, 0xFFFFFFFF), (1, 23)], "a section without code"),
    ],
)
def test_unknown_call_graph(pairs, reason):
    with pytest.raises(KeptWhole, match=reason):
        find_cut(with_callgraph(pairs), set(KERNELS))


def test_unreachable_function_is_kept():
    """The cubin no longer says that `alone` calls `lonely`, so maybe another cubin calls it."""
    data = bytearray(with_callgraph([(0, 0xFFFFFFFF)]))
    elf = ELFFile(io.BytesIO(data))
    calls = elf.get_section_by_name(".rela.text.alone")
    names = [symbol.name for symbol in elf.get_section_by_name(".symtab").iter_symbols()]
    for number, call in enumerate(calls.iter_relocations()):
        if call["r_info_sym"] == names.index("lonely"):
            struct.pack_into("<I", data, calls["sh_offset"] + 24 * number + 12, names.index("alone"))
    assert cut_out(data, find_cut(data, {"alone"}))[1] == {"alone"}
    assert cut_out(data, find_cut(data, set(KERNELS)))[1] == set(KERNELS).union(*KERNELS.values()) - {"lonely"}


@pytest.mark.full
def test_a_long_circular_call_graph_ends():
    names = [s.name for s in ELFFile(io.BytesIO(samples.linked("sm_90", samples.USERS, samples.FUNCTIONS)))
             .get_section_by_name(".symtab").iter_symbols()]  # fmt: skip
    numbers = [names.index(name) for name in ("direct", "callee", "deep", "plain")]
    circle = [*zip(numbers, numbers[1:] + numbers[:1], strict=True)]
    data = with_callgraph([(0, 0xFFFFFFFF), *circle * 500_000])
    begin = time.process_time()
    assert cut_out(data, find_cut(data, {"plain", "alone"}))[1] == {"alone", "lonely"}  # `direct` needs `plain` now
    assert time.process_time() - begin < 5


@pytest.mark.full
def test_tables_that_lie_over_each_other():
    begin = time.process_time()
    with pytest.raises(KeptWhole, match="tables overlap"):
        find_cut(forged(60_000, 2), {"k"})
    assert time.process_time() - begin < 5


def test_sections_that_share_bytes():
    data = bytearray(samples.linked("sm_90", samples.USERS, samples.FUNCTIONS))
    _, plain = section(data, ".text.plain")
    _, direct = section(data, ".text.direct")
    data[plain + 24 : plain + 40] = data[direct + 24 : direct + 40]  # offset and size
    with pytest.raises(KeptWhole, match="sections overlap"):
        find_cut(data, {"plain"})
    assert find_cut(data, {"alone"}).kernels == 1
    data[plain + 24 : plain + 40] = struct.pack("<QQ", 0, 64)  # the header of the file
    with pytest.raises(KeptWhole, match="sections overlap"):
        find_cut(data, {"plain"})
    data[plain + 24 : plain + 40] = struct.pack("<QQ", 1 << 63, 1 << 63)
    with pytest.raises(MalformedError, match="beyond its end"):
        find_cut(data, {"plain"})


@settings(max_examples=examples(400))
@given(st.data())
def test_bytes_that_are_wrong(draw):
    """Whatever the tables contain, the result is a list of code ranges, or one of two rejections."""
    data = damaged(samples.linked("sm_90", samples.USERS, samples.FUNCTIONS), draw)
    try:
        cut = find_cut(data, {"plain", "alone"})
        names = {kernel["name"] for kernel in parse_cubin(data).kernels}
    except (KeptWhole, MalformedError):
        return
    assert cut.kernels <= len(names)
    assert all(0 <= start < end <= len(data) for start, end in cut.spans)
    assert all(a[1] <= b[0] for a, b in zip(cut.spans, cut.spans[1:], strict=False))
