"""Variables that a second copy of a cubin shares with the first."""

import numpy as np
import pytest

from gpt.formats import elftables
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.cubin_variables import Variables
from gpt.formats.kernel_edit import KernelEditor
from tests import cuda

SOURCE = """
extern "C" __device__ int printf(const char *, ...);
__device__ int total;
static __device__ int mine = 7;
__device__ int array[64];
__device__ int *where = &array[3];
__constant__ int plain = 3;
static __constant__ int *pointer = &array[1];
extern "C" __global__ void k(float *p, int n) {
    atomicAdd(&total, 1);
    mine++;
    array[n & 63] += plain;
    *where = 4;
    *pointer = 5;
    p[0] = sinf(p[1] * 1e10f);
    printf("%d", n);
}
extern "C" __global__ void other(int *p) { total = *p; }
"""
RELA = elftables.RELA.dtype
RELOCATIONS = b".rela.nv.constant4"


@pytest.fixture(scope="module")
def cubin():
    return cuda.nvrtc_compile(SOURCE, "sm_90")


def section_of(editor, name="k"):
    return KernelEditor(editor, name).section


def relocations(editor):
    return np.frombuffer(bytes(editor.content(editor.numbers[RELOCATIONS])), RELA).copy()


def names(editor, table):
    strings = bytes(editor.content(int(editor.sections["link"][editor.table])))
    starts = editor.symbols["name"][table["symbol"]].tolist()
    return {strings[at : strings.index(b"\0", at)].decode() for at in starts}


def edited(cubin, **values):
    """Return the cubin with some fields changed in the first relocation of `total`."""
    editor = CubinEditor(cubin)
    table = relocations(editor)
    place = next(at for at in range(len(table)) if names(editor, table[at : at + 1]) == {"total"})
    for name, value in values.items():
        table[name][place] = value
    editor.replace(editor.numbers[RELOCATIONS], table.tobytes())
    return CubinEditor(editor.build())


def test_shared_variables_lose_their_addresses(cubin):
    editor = CubinEditor(cubin)
    before = relocations(editor)
    freed = Variables(editor).free_addresses(section_of(editor))
    assert {one.variable.name for one in freed} == {"total", "mine", "array", "where"}
    assert {one.offset for one in freed} <= set(before["offset"].tolist())
    new = CubinEditor(editor.build())
    left = names(new, relocations(new))
    assert "vprintf" in left and all(name.startswith(("vprintf", "$str", "__cudart_")) for name in left)
    (total,) = [one for one in freed if one.variable.name == "total"]
    assert total.variable.size == 4 and new.content(total.section)[total.offset : total.offset + 8] == bytes(8)


def test_without_relocations_the_section_goes():
    editor = CubinEditor(cuda.nvrtc_compile('__device__ int n; extern "C" __global__ void k() { n++; }', "sm_90"))
    assert len(Variables(editor).free_addresses(section_of(editor))) == 1
    new = CubinEditor(editor.build())
    assert not new.sections["type"][editor.numbers[RELOCATIONS]]


def test_a_distance_from_the_start_stays(cubin):
    editor = edited(cubin, addend=12)
    (total,) = [one for one in Variables(editor).free_addresses(section_of(editor)) if one.variable.name == "total"]
    new = CubinEditor(editor.build())
    assert int.from_bytes(new.content(total.section)[total.offset : total.offset + 8], "little") == 12


def test_a_constant_with_an_address_is_known(cubin):
    found = {one.variable.name: one.holds_address for one in Variables(CubinEditor(cubin)).list_constants()}
    assert found == {"plain": False, "pointer": True}


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"type": 4}, "the address of 'total' is needed in an unknown form"),
        ({"offset": 1 << 40}, "the address of 'total' is needed at 0x10000000000"),
        ({"offset": 4}, "the address of 'total' is needed at 0x4"),
        ({"symbol": 1 << 20}, "a symbol beyond the symbol table is used"),
    ],
)
def test_unknown_layouts_are_refused(cubin, values, fault):
    editor = edited(cubin, **values)
    with pytest.raises(CannotEdit, match=fault):
        Variables(editor).free_addresses(section_of(editor))


def test_code_with_an_address_is_refused(cubin):
    editor = CubinEditor(cubin)
    editor.sections["info"][editor.numbers[RELOCATIONS]] = section_of(editor)
    with pytest.raises(CannotEdit, match=r"an instruction has the address of '.*' in it, at .* of \.text\.k"):
        Variables(editor).free_addresses(section_of(editor))


def test_the_address_of_a_constant_is_refused(cubin):
    editor = CubinEditor(cubin)
    constant = next(
        at for at, one in enumerate(editor.symbols) if names(editor, np.array([(0, 0, at, 0)], RELA)) == {"plain"}
    )
    with pytest.raises(CannotEdit, match="it passes on the address of 'plain' in constant memory"):
        found = edited(cubin, symbol=constant)
        Variables(found).free_addresses(section_of(found))
