"""The face of a machine instruction matches the PTX that ptxas compiled, and nvdisasm's output."""

import re
import subprocess

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.sass.code import Code, Instruction
from gpt.sass.faces import OPCODES, find_face
from gpt.sass.masks import Masks
from gpt.sass.tables import Opcode, table_of
from gpt.sass.words import parse_words
from tests import cuda
from tests.sass.forms import FORMS, iter_group_shapes, make_module
from tests.sass.listing import list_cubin, listed_code

WIDTHS = {"U8": "u8", "S8": "s8", "U16": "u16", "S16": "s16", "64": "b64", "128": "v4.b32"}
HEADS = {"LDG": "ld.global", "STG": "st.global", "LD": "ld", "ST": "st", "LDS": "ld.shared", "STS": "st.shared",
         "LDL": "ld.local", "STL": "st.local"}  # fmt: skip


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    (folder / "forms.ptx").write_text(make_module())
    command = ["-arch", "sm_90a", "-o", folder / "forms.cubin", folder / "forms.ptx"]
    try:
        subprocess.run([cuda.tool("ptxas"), *command], check=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return folder / "forms.cubin"


@pytest.fixture(scope="module")
def listing(cubin):
    try:
        return list_cubin(str(cuda.tool("nvdisasm")), cubin)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def kernels(cubin, listing):
    """Return the code of each kernel, after checking that instructions have the names that nvdisasm prints."""
    editor = CubinEditor(cubin.read_bytes())
    words = {name: parse_words(KernelEditor(editor, name).code) for name in listing}
    return {name: listed_code(words[name][: len(rows)], rows) for name, rows in listing.items()}


@pytest.mark.parametrize("number", range(len(FORMS)), ids=[form.ptx for form in FORMS])
def test_changed_instruction_is_shown_in_its_original_form(number, kernels):
    found = [(one, face) for one in kernels[f"k{number}"] if (face := find_face(one)) is not None]
    assert all(face.partition(".")[0] in OPCODES[one.name] for one, face in found if face)
    faces = {face for _, face in found}
    assert set(FORMS[number].faces) <= faces, FORMS[number].body
    # Branches on uniform predicates.
    assert all(one.name == "BRA" for one in kernels[f"k{number}"] if find_face(one) == "")


@pytest.mark.full
def test_wgmma_is_shown_with_each_of_its_shapes(tmp_path):
    """Every type and number of columns in PTX, as ptxas encodes it."""
    forms = list(iter_group_shapes())
    (tmp_path / "forms.ptx").write_text(make_module(forms))
    try:
        subprocess.run([cuda.tool("ptxas"), "-arch", "sm_90a", "-o", "out", "forms.ptx"], check=True, cwd=tmp_path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    editor, table = CubinEditor((tmp_path / "out").read_bytes()), table_of("sm_90")
    for number, form in enumerate(forms):
        code = Code(KernelEditor(editor, f"k{number}").code, table)
        found = [find_face(code[index]) for index in code.find({"HGMMA", "IGMMA", "QGMMA"})]
        assert found == list(form.faces), form.ptx


def test_a_store_has_no_sign():
    """ptxas spills with STL.S16."""
    one = Instruction(0, 0x387 | 7 << 12 | 3 << 73, Opcode(0x387, "STL", True, None, ()), Masks(0, 0, -1, True))
    assert find_face(one) == "st.local.u16"


def test_widths_are_what_nvdisasm_prints(listing, kernels):
    """Bits 73 to 75 are tested in every access of the module."""
    seen = set()
    for name, rows in listing.items():
        for row in rows:
            text = re.sub(r"^@!?U?P\w+ ", "", row.text).split()[0]
            opcode, *modifiers = text.split(".")
            if opcode in HEADS and not row.text.startswith("@!PT"):
                width = next((WIDTHS[m] for m in modifiers if m in WIDTHS), "b32")
                assert find_face(kernels[name][row.offset // 16]) == f"{HEADS[opcode]}.{width}", row.text
                seen.add((opcode, width))
    assert len(seen) > 35
