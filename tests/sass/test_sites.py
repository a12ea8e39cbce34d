"""Sites in kernels: their positions, and the registers that are free there."""

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from gpt.base.errors import GptError, MalformedError
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.nvinfo import iter_attributes
from gpt.sass.arch import arch_of
from gpt.sass.code import Code
from gpt.sass.graph import UnboundedError
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.sites import iter_sites
from gpt.sass.tables import Registers, table_of
from gpt.sass.words import dump_words
from tests import cuda
from tests.sass.assembly import TABLE, program
from tests.sass.listing import list_cubin

KERNELS = Path(__file__).with_name("flow.cu")
NAMES = re.compile(r"(LD|ST)[GSL]?|LDGSTS|(REDG|ATOM[GS]?)|(LD|ST)SM|BAR|[HID]MMA|EXIT|BRA|BRX")
CASES = "".join(f"case {i}: x[{3 * i}] = n * {i * i + 1} + x[{i}]; x[{i + 5}] ^= {7 * i}; break;" for i in range(12))
SWITCH = f'extern "C" __global__ void jump(int *x, int n) {{ switch (n) {{ {CASES} }} }}'


def compiled(source):
    try:
        return cuda.nvrtc_compile(source, "sm_90")
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def image():
    return compiled(KERNELS.read_text() + SWITCH)


def read(image, name):
    return read_kernel(CubinEditor(image), name, table_of("sm_90"))


def made(*lines, registers=16):
    return Kernel("made", program(*lines), registers, {})


def sites(*lines, registers=16):
    return [(one.name, face, free) for one, face, free, _ in iter_sites(made(*lines, registers=registers))]


def test_sites_are_what_nvdisasm_lists(image, tmp_path):
    """Code that never runs is excepted: loads under !PT, and the padding's branch to itself."""
    path = tmp_path / "k.cubin"
    path.write_bytes(image)
    try:
        listing = list_cubin(str(cuda.tool("nvdisasm")), path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    compared = 0
    for name, rows in listing.items():
        expected = [(0, rows[0].text.split()[0])]
        for row in rows:
            opcode = re.split(r"[. ]", re.sub(r"^@!?U?P\w+ ", "", row.text))[0]
            if NAMES.fullmatch(opcode) and not row.text.startswith("@!PT"):
                expected.append((row.offset, opcode))
        if expected[-1][1] == "BRA":
            expected.pop()
        assert [(site.one.offset, site.one.name) for site in iter_sites(read(image, name))] == expected
        compared += len(expected)
    assert compared > 80


def test_free_registers_are_dead_in_nvdisasm_too(image, tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(image)
    try:
        listing = list_cubin(str(cuda.tool("nvdisasm")), path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    free = 0
    for name, rows in listing.items():
        for site in iter_sites(read(image, name)):
            if site.free:
                row = rows[site.one.index]
                assert not any(a & b for a, b in zip(site.free, row.live, strict=True)), row
                free += site.free.R.bit_count()
    assert free > 200


def test_a_register_is_free_if_it_is_dead_and_nothing_is_in_flight():
    load = ("LDG 4 8, w2", "STG 8 5, r3", "MOV 6 4, b2", "STG 8 6, r3 b3", "EXIT")
    first, _, before_store, second, last = sites(*load, registers=10)
    assert first[:2] == ("LDG", "entry")
    assert first[2].R == 0b0011011101, "neither R1 nor live ones"
    assert before_store[2].R == 0b0011001101, "R4 is still being loaded"
    assert second[2].R == 0b0010111101, "R4 has arrived"
    assert last[2].R == 0b1111111101


def test_operands_of_a_store_that_nobody_awaits_are_not_free():
    *_, last = sites("STG 8 4", "EXIT", registers=10)
    assert last[2].R == 0b0011101101


def test_other_files_do_not_depend_on_the_register_count():
    (free,) = {site[2] for site in sites("EXIT", registers=0)}
    assert [mask.bit_count() for mask in free] == [0, 63, 7, 7, 16]
    assert free == Registers(0, (1 << 63) - 1, 127, 127, 0xFFFF)


def test_code_that_nothing_leads_to():
    found = sites("EXIT", "STG 8 4", "back: BRA back")
    assert [(name, free is None) for name, _, free in found] == [("EXIT", False), ("EXIT", False), ("STG", True)]


def test_the_entry_that_ptxas_writes(image):
    assert all(read(image, raw.decode()).has_usual_entry for raw in CubinEditor(image).kernels)
    assert not made("MOV 1 2", "EXIT").has_usual_entry


def test_jump_tables_are_followed(image):
    kernel = read(image, "jump")
    assert any(one.name == "BRX" for one in kernel.code)
    assert set(kernel.jump_tables) == {one.offset for one in kernel.code if one.name == "BRX"}
    assert len(kernel.jump_targets) > 8 and all(target % 16 == 0 for target in kernel.jump_targets)
    assert len(kernel.graph.reachable()) > len(kernel.jump_targets)
    with pytest.raises(UnboundedError):
        list(iter_sites(Kernel("jump", kernel.code, 16, {})))


def damaged_table(image, change):
    """Return the cubin with the first words of the jump table changed."""
    cubin = CubinEditor(image)
    editor = KernelEditor(cubin, "jump")
    entry = next(entry for entry in iter_attributes(bytes(editor.info)) if entry.kind == 0x34)
    change(editor.info, entry.end - len(entry.payload))
    return cubin.build()


@pytest.mark.parametrize("count", [0xFFFFFFFF, 1 << 30, 1000])
def test_a_jump_table_longer_than_its_entry(image, count):
    with pytest.raises(MalformedError, match="jump table"):
        read(damaged_table(image, lambda info, at: struct.pack_into("<I", info, at + 8, count)), "jump")


def test_jump_tables_have_a_limit(image):
    cubin = CubinEditor(image)
    entry = struct.pack("<BBHIII", 4, 0x34, 12 + 4 * 16000, 16, 0, 16000) + bytes(4 * 16000)
    KernelEditor(cubin, "jump").info.extend(entry * 66)
    with pytest.raises(GptError, match="jump tables that are too large"):
        read(cubin.build(), "jump")


def test_jump_table_with_outside_target(image):
    for target in (8, 1 << 20, 0xFFFFFFF0):
        kernel = read(
            damaged_table(image, lambda info, at, to=target: struct.pack_into("<I", info, at + 12, to)), "jump"
        )
        with pytest.raises(UnboundedError, match="no instruction"):
            list(iter_sites(kernel))


def test_cut_and_damaged_cubins_are_refused_or_read(image):
    """Tables are cut at any length, or any byte of those at the end is inverted."""
    for size in range(0, len(image), 997):
        with pytest.raises(GptError):
            read(image[:size], "jump")
    for at in range(len(image) - 64 * 20, len(image), 7):
        changed = bytearray(image)
        changed[at] ^= 0xFF
        try:
            list(iter_sites(read(bytes(changed), "jump")))
        except GptError:
            pass


def test_other_architectures_have_no_sites():
    """Other architectures encode atomics differently, so their atomics would be taken for others."""
    table = replace(TABLE, arch=arch_of("sm_80"))
    kernel = Kernel("k", Code(dump_words(program("EXIT").words), table), 16, {})
    with pytest.raises(GptError, match="the instructions of sm_80"):
        list(iter_sites(kernel))
