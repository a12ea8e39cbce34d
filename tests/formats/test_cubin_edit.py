"""Edited cubins: only the edited parts change, NVIDIA's tools read them, and ptxas writes the same."""

import io
import re
import struct

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.kernel_edit import NOP, WORD, KernelEditor
from gpt.formats.kernel_params import add_parameter, raise_stack
from gpt.formats.nvinfo import iter_attributes, read_needs
from tests import cuda
from tests.formats import samples
from tests.formats.kernels_to_edit import ARCHS, KERNELS, STRAIGHT, compiled, instructions
from tests.tiers import examples, full

OLD = [pytest.param(arch, True, marks=pytest.mark.full) for arch in ARCHS]
BOTH = [(arch, False) for arch in ARCHS] + OLD
NO_EDITS = {
    "registers": lambda kernel: kernel.set_registers(kernel.registers),
    "code": lambda kernel: kernel.write(0, bytes(kernel.code[:WORD])),
    "append": lambda kernel: kernel.append(b""),
    "move": lambda kernel: kernel.move({}),
    "move to itself": lambda kernel: kernel.move({at: at for at in range(0, len(kernel.code), WORD)}),
    "copy": lambda kernel: kernel.cubin.editable(kernel.section),
    "symbols": lambda kernel: kernel.cubin.symbols,
}


@pytest.mark.parametrize(("arch", "old"), BOTH)
def test_without_edits_every_byte_is_equal(arch, old):
    data = compiled(arch, old=old)
    assert CubinEditor(data).build() == data


@pytest.mark.parametrize("options", [["-G"], full(["-lineinfo"]), full(["-rdc=true"])])
def test_without_edits_other_cubins_are_equal(options):
    data = samples.image(samples.USERS, "sm_90", "-rdc=true", *options)
    assert CubinEditor(data).build() == data
    linked = samples.linked("sm_90", samples.USERS, samples.FUNCTIONS)
    assert CubinEditor(linked).build() == linked


SPACES = """
__device__ int counter;
extern "C" __global__ void a(int *p) { __shared__ int s[33]; s[threadIdx.x] = *p; __syncthreads(); *p = s[*p]; }
extern "C" __global__ void b(int *p) { __shared__ double s[5]; s[*p] = counter++; *p = s[0]; }
extern "C" __global__ void c(int *p) { int l[99]; for (int i = 0; i < 99; i++) l[p[i]] = i; *p = l[*p]; }
"""


@pytest.mark.parametrize("arch", [full("sm_80"), "sm_90", full("sm_110")])
def test_relocatable_code_has_variables_without_bytes(arch):
    data = samples.image(SPACES, arch, "-rdc=true")
    cubin = CubinEditor(data)
    assert cubin.build() == data
    for name in ("a", "b", "c"):
        KernelEditor(cubin, name).append(NOP * 9)
    for name, listed in instructions(cubin.build()).items():
        before = instructions(data)[name]
        assert listed[: len(before)] == before
        assert set(listed[len(before) :]) == {"NOP"}


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(ARCHS), st.lists(st.tuples(st.sampled_from(list(KERNELS)), st.sampled_from(list(NO_EDITS)))))
def test_edits_that_change_nothing_change_no_byte(arch, edits):
    cubin = CubinEditor(compiled(arch))
    for name, edit in edits:
        NO_EDITS[edit](KernelEditor(cubin, name))
    assert cubin.build() == compiled(arch)


@settings(max_examples=examples(25), deadline=None)
@pytest.mark.full
@given(
    st.sampled_from(ARCHS),
    st.dictionaries(st.sampled_from(list(KERNELS)), st.integers(1, 40), min_size=1, max_size=4),
)
def test_appended_nops_are_all_that_nvdisasm_lists_more(arch, grown):
    data = compiled(arch)
    cubin = CubinEditor(data)
    for name, count in grown.items():
        kernel = KernelEditor(cubin, name)
        assert kernel.append(NOP * count) == len(code_of(data)[name])
    new = cubin.build()
    before, after = instructions(data), instructions(new)
    assert before.keys() == after.keys()
    for name, listed in before.items():
        added = -(-(len(listed) + grown.get(name, 0)) // 8) * 8 - len(listed)
        assert after[name] == listed + ["NOP"] * added
    check_tables(data, new)


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(ARCHS), st.sampled_from(STRAIGHT), st.integers(1, 20), st.data())
def test_inserted_nops_are_all_that_nvdisasm_lists_more(arch, name, count, draw):
    data = compiled(arch)
    cubin = CubinEditor(data)
    before = instructions(data)
    last = next(index for index, text in enumerate(before[name]) if "BRA" in text)
    at = draw.draw(st.integers(0, last))
    KernelEditor(cubin, name).insert(at * WORD, NOP * count)
    new = cubin.build()
    after = instructions(new)
    size = -(-(len(before[name]) + count) // 8) * 8
    expected = [*before[name][:at], *["NOP"] * count, *before[name][at:]]
    assert after == before | {name: expected + ["NOP"] * (size - len(expected))}
    check_tables(data, new)
    exits = [index * WORD for index, text in enumerate(after[name]) if text.endswith("EXIT")]
    assert sorted(offsets_of(new, name, 0x1C)) == exits


def code_of(data):
    elf = ELFFile(io.BytesIO(data))
    return {s.name[6:]: s.data() for s in elf.iter_sections() if s.name.startswith(".text.")}


def offsets_of(data, name, kind):
    cubin = CubinEditor(data)
    entries = iter_attributes(cubin.content(cubin.numbers[b".nv.info." + name.encode()]))
    return [at for entry in entries if entry.kind == kind for at in np.frombuffer(entry.payload, "<u4").tolist()]


def check_tables(before, after):
    """Check that only code and its tables have changed, and that everything is in the right place."""
    old, new = (ELFFile(io.BytesIO(data)) for data in (before, after))
    for was, now in zip(old.iter_sections(), new.iter_sections(), strict=True):
        assert (was.name, was["sh_type"], was["sh_info"], was["sh_link"]) == (
            now.name,
            now["sh_type"],
            now["sh_info"],
            now["sh_link"],
        )
        if now["sh_type"] not in ("SHT_NOBITS", "SHT_NULL"):
            assert now["sh_offset"] % max(1, now["sh_addralign"]) == 0
            assert now["sh_offset"] + now["sh_size"] <= len(after)
            changes = was.name.startswith((".text.", ".nv.info.", ".symtab", ".debug_frame"))
            assert changes or was.data() == now.data()
    for was, now in zip(old.iter_segments(), new.iter_segments(), strict=True):
        held = [s.name for s in old.iter_sections() if s["sh_size"] and was.section_in_segment(s)]
        assert held == [s.name for s in new.iter_sections() if s["sh_size"] and now.section_in_segment(s)]
        assert now["p_memsz"] - now["p_filesz"] == was["p_memsz"] - was["p_filesz"]
    sizes = {number: section["sh_size"] for number, section in enumerate(new.iter_sections())}
    ends = {}
    for symbol in new.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            ends.setdefault(symbol["st_shndx"], []).append(symbol["st_value"] + symbol["st_size"])
    assert all(max(found) == sizes[number] for number, found in ends.items())


@pytest.mark.parametrize(("arch", "old"), BOTH)
def test_frames_cover_the_code(arch, old, tmp_path):
    cubin = CubinEditor(compiled(arch, old=old))
    for name in KERNELS:
        KernelEditor(cubin, name).append(NOP * 9)
    (tmp_path / "new.cubin").write_bytes(cubin.build())
    (tmp_path / "old.cubin").write_bytes(cubin.data)
    was, now = (frames_of(tmp_path / f"{name}.cubin") for name in ("old", "new"))
    texts = {name: len(code) for name, code in code_of(cubin.build()).items()}
    assert len(was) == len(now) >= len(KERNELS)
    for name in KERNELS:
        assert max(start + size for owner, start, size in now if owner == name) == texts[name]
        assert [start for owner, start, _ in now if owner == name] == [s for owner, s, _ in was if owner == name]


def frames_of(path):
    """Return the function, start and size of each entry in .debug_frame, from cuobjdump."""
    text = cuda.run("cuobjdump", "-elf", path)
    entry = r"initial_location: +(0x[0-9a-f]+)\s+address_range: +(0x[0-9a-f]+)\s+function: +(\S+)"
    return [(name, int(start, 16), int(size, 16)) for start, size, name in re.findall(entry, text)]


@pytest.mark.parametrize(("arch", "old"), BOTH)
def test_register_counts_are_those_that_cuobjdump_lists(arch, old, tmp_path):
    cubin = CubinEditor(compiled(arch, old=old))
    counts = {name: 40 + number for number, name in enumerate(KERNELS)}
    for name, count in counts.items():
        KernelEditor(cubin, name).set_registers(count)
    new = cubin.build()
    (tmp_path / "new.cubin").write_bytes(new)
    listed = re.findall(r"Function (\w+):\s+REG:(\d+)", cuda.run("cuobjdump", "-res-usage", tmp_path / "new.cubin"))
    assert {name: int(count) for name, count in listed} == counts
    assert {name: needs.registers for name, needs in read_needs(new).items()} == counts
    elf = ELFFile(io.BytesIO(new))
    tops = {name: elf.get_section_by_name(f".text.{name}")["sh_info"] >> 24 for name in KERNELS}
    assert tops == (counts if arch == "sm_80" else dict.fromkeys(KERNELS, 0))


def test_duplicate_count():
    """ptxas 12.4 writes the size of the stack twice."""
    first, name = CubinEditor(compiled("sm_90")), next(iter(KERNELS))
    symbol = KernelEditor(first, name).symbol
    size = first.find_pair(0x12, symbol)
    first.editable(first.numbers[b".nv.info"]).extend(struct.pack("<BBHII", 4, 0x12, 8, symbol, size))
    twice = CubinEditor(first.build())
    raise_stack(KernelEditor(twice, name), 48)
    entries = [entry for entry in iter_attributes(twice.content(twice.numbers[b".nv.info"])) if entry.kind == 0x12]
    ours = [entry.payload for entry in entries if bytes(entry.payload[:4]) == struct.pack("<I", symbol)]
    assert ours == [struct.pack("<II", symbol, size + 48)] * 2
    assert CubinEditor(twice.build()).find_pair(0x12, symbol) == size + 48

    first.editable(first.numbers[b".nv.info"])[-4:] = struct.pack("<I", size + 1)
    with pytest.raises(CannotEdit, match="attribute 0x12 has two values"):
        _ = CubinEditor(first.build()).info_pairs


def test_a_bound_on_registers_is_raised(tmp_path):
    (tmp_path / "in.ptx").write_bytes(cuda.nvrtc_compile("__global__ void k(int *p) { *p = 1; }", "compute_90"))
    cuda.run("ptxas", "-arch=sm_90", "-maxrregcount=24", "in.ptx", "-o", "out", cwd=tmp_path)
    cubin = CubinEditor((tmp_path / "out").read_bytes())
    kernel = KernelEditor(cubin, "_Z1kPi")
    assert [entry.value for entry in iter_attributes(kernel.info) if entry.kind == 0x1B] == [24]
    kernel.set_registers(20)
    assert [entry.value for entry in iter_attributes(kernel.info) if entry.kind == 0x1B] == [24]
    kernel.set_registers(33)
    assert [entry.value for entry in iter_attributes(kernel.info) if entry.kind == 0x1B] == [40]


@pytest.mark.parametrize(("arch", "old"), BOTH)
def test_one_more_parameter_is_what_ptxas_writes(arch, old):
    cubin = CubinEditor(compiled(arch, old=old))
    added = {name: add_parameter(KernelEditor(cubin, name)) for name in KERNELS}
    assert cubin.build() == compiled(arch, "unsigned long long last", old)
    base = {"sm_80": 0x160, "sm_90": 0x210, "sm_100": 0x380, "sm_120": 0x380}[arch]
    assert added["none"] == (0, 0, base)
    assert added["two"] == (2, 16, base + 16)
    assert added["mixed"] == (3, 40, base + 40)
    assert added["large"] == (2, 4344, base + 4344)


def test_two_more_parameters_cross_the_limit_of_the_first_form():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "large")
    assert [add_parameter(kernel).offset for _ in range(2)] == [4344, 4352]
    wanted = CubinEditor(compiled("sm_90", "unsigned long long last, unsigned long long more"))
    assert kernel.info == KernelEditor(wanted, "large").info


def test_first_parameter_precedes_ptxas_trailing_lines():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "none")
    kernel.info.extend(bytes.fromhex("036b0800 026d0100"))  # as written by ptxas of CUDA 13.5
    add_parameter(kernel)
    assert [entry.kind for entry in iter_attributes(bytes(kernel.info))][-5:] == [0x19, 0x0A, 0x36, 0x6B, 0x6D]


BARRIERS = """
extern "C" __device__ int vprintf(const char *, void *);
extern "C" __global__ void waits(int *p) {
    __shared__ unsigned long long b;
    unsigned a = (unsigned)__cvta_generic_to_shared(&b);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(a));
    asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(a));
    *p = 1;
}
extern "C" __global__ void prints() { vprintf("a", 0); vprintf("b", 0); }
extern "C" __global__ void halves(unsigned short *p) {
    unsigned short old;
    asm volatile("atom.add.noftz.f16 %0, [%1], %2;" : "=h"(old) : "l"(p), "h"(p[1]) : "memory");
    p[2] = old;
}
extern "C" __global__ void unused(float4 *p, float *out) { out[0] = p[1].x * p[1].y + p[1].z; }
"""
LISTS = {
    ("waits", 0x39): "SYNCS", ("prints", 0x46): "CALL.ABS", ("waits", 0x1C): "EXIT", ("prints", 0x1C): "EXIT",
    ("halves", 0x2E): ("LD.E", "CAS"), ("unused", 0x44): "LDG.E.128",
}  # fmt: skip
STEPS = {0x39: 4, 0x2E: 2, 0x44: 2}  # numbers of an entry


@pytest.mark.parametrize("at", [full(0), 16, full(48)])
def test_lists_of_instructions_follow_them(at):
    """The rest of an entry, after the offset, is unchanged."""
    data = samples.image(BARRIERS, "sm_90")
    cubin = CubinEditor(data)
    for name in ("waits", "prints", "halves", "unused"):
        KernelEditor(cubin, name).insert(at, NOP * 3)
    new = cubin.build()
    for (name, kind), opcodes in LISTS.items():
        opcodes = (opcodes,) if isinstance(opcodes, str) else opcodes
        step = STEPS.get(kind, 1)
        was, now = offsets_of(data, name, kind), offsets_of(new, name, kind)
        listed = instructions(new)[name]
        assert now[::step] == [WORD * n for n, text in enumerate(listed) if any(part in text for part in opcodes)]
        assert [now[n] for n in range(len(now)) if n % step] == [was[n] for n in range(len(was)) if n % step]


def test_instruction_moved_to_the_start_moves_again():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "one")
    (last,) = offsets_of(compiled("sm_90"), "one", 0x1C)
    kernel.move({last: 0})
    kernel.insert(0, NOP * 2)
    assert offsets_of(cubin.build(), "one", 0x1C) == [32]
    assert cubin.symbols["value"][kernel.symbol] == 0


def test_a_branch_through_a_table_moves_and_its_targets_stay():
    data = compiled("sm_90")
    branch, zeros, count, *rest = offsets_of(data, "jumps", 0x34)
    second, *_ = rest[count:]
    assert [instructions(data)["jumps"][at // WORD].split()[0] for at in (branch, second)] == ["BRX", "BRX"]
    cubin = CubinEditor(data)
    kernel = KernelEditor(cubin, "jumps")
    at = kernel.append(bytes(kernel.code[branch : branch + WORD]))
    kernel.move({branch: at, rest[0]: at + WORD})
    assert offsets_of(cubin.build(), "jumps", 0x34) == [at, zeros, count, *rest]
    kernel.move({second: at})
    assert offsets_of(cubin.build(), "jumps", 0x34) == [at, zeros, count, *rest[:count], at, *rest[count + 1 :]]


def test_an_instruction_in_an_unknown_list_does_not_move():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "one")
    kernel.info.extend(bytes.fromhex("047e0400 30000000"))
    with pytest.raises(CannotEdit, match="attribute 0x7e is not understood"):
        kernel.move({0x30: 0x40})
    kernel.move({0x40: 0x50})


def test_another_edit_can_be_made_while_a_refusal_is_handled():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "jumps")
    try:
        kernel.insert(0, NOP)
    except CannotEdit:
        add_parameter(kernel)
    assert cubin.build() != cubin.data


def test_a_cubin_is_not_built_after_half_an_edit():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "sync")
    exits = next(entry for entry in iter_attributes(bytes(kernel.info)) if entry.kind == 0x1C)
    kernel.info[exits.end - 4 : exits.end] = bytes.fromhex("00000100")
    with pytest.raises(CannotEdit, match="beyond the code"):
        kernel.insert(0, NOP)
    with pytest.raises(CannotEdit, match="an edit failed halfway"):
        cubin.build()


def test_moved_instructions_take_their_tables_along():
    cubin = CubinEditor(compiled("sm_90"))
    kernel = KernelEditor(cubin, "sync")
    (last,) = offsets_of(compiled("sm_90"), "sync", 0x1C)
    others = offsets_of(compiled("sm_90"), "sync", 0x28)
    at = kernel.append(bytes(kernel.code[last : last + WORD]))
    kernel.move({last: at})
    assert offsets_of(cubin.build(), "sync", 0x1C) == [at]
    assert offsets_of(cubin.build(), "sync", 0x28) == others


REFUSED = {
    "no kernel 'absent'": lambda c: KernelEditor(c, "absent"),
    "0 registers": lambda c: KernelEditor(c, "one").set_registers(0),
    "256 registers": lambda c: KernelEditor(c, "one").set_registers(256),
    "it has jump tables": lambda c: KernelEditor(c, "jumps").insert(0, NOP),
    "8 bytes of code at 0x0": lambda c: KernelEditor(c, "one").insert(0, NOP[:8]),
    "16 bytes of code at 0x8": lambda c: KernelEditor(c, "one").write(8, NOP),
    "16 bytes of code at 0x100000": lambda c: KernelEditor(c, "one").write(1 << 20, NOP),
    "an instruction moves beyond the code": lambda c: KernelEditor(c, "one").move({0: 1 << 20}),
    "has no bytes in the file": lambda c: c.editable(c.numbers[b".nv.shared.sync"]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_invalid_edits_are_refused(why):
    cubin = CubinEditor(compiled("sm_90"))
    with pytest.raises(CannotEdit, match=re.escape(why)):
        REFUSED[why](cubin)
    assert cubin.build() == compiled("sm_90")
