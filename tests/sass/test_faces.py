"""The face of a machine instruction is the PTX instruction that ptxas made it of, and what nvdisasm says it is."""

import re
import subprocess

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.sass.code import Instruction
from gpt.sass.faces import find_face
from gpt.sass.masks import Masks
from gpt.sass.tables import Opcode
from gpt.sass.words import parse_words
from tests import cuda
from tests.sass.forms import FORMS, make_module
from tests.sass.listing import list_cubin, listed_code

WIDTHS = {"U8": "u8", "S8": "s8", "U16": "u16", "S16": "s16", "64": "b64", "128": "v4.b32"}
OPCODES = {"LDG": "ld.global", "STG": "st.global", "LD": "ld", "ST": "st", "LDS": "ld.shared", "STS": "st.shared",
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
    """The code of each kernel; its instructions have the names that nvdisasm prints."""
    editor = CubinEditor(cubin.read_bytes())
    words = {name: parse_words(KernelEditor(editor, name).code) for name in listing}
    return {name: listed_code(words[name][: len(rows)], rows) for name, rows in listing.items()}


@pytest.mark.parametrize("number", range(len(FORMS)), ids=[form.ptx for form in FORMS])
def test_an_instruction_is_shown_as_what_it_was(number, kernels):
    faces = {face for one in kernels[f"k{number}"] if (face := find_face(one)) is not None}
    assert set(FORMS[number].faces) <= faces, FORMS[number].body
    assert "" not in faces


def test_a_store_has_no_sign():
    """ptxas spills with STL.S16."""
    one = Instruction(0, 0x387 | 7 << 12 | 3 << 73, Opcode(0x387, "STL", True, None, ()), Masks(0, 0, -1, True))
    assert find_face(one) == "st.local.u16"


def test_widths_are_what_nvdisasm_prints(listing, kernels):
    """Bits 73 to 75, in every access of the module."""
    seen = set()
    for name, rows in listing.items():
        for row in rows:
            text = re.sub(r"^@!?U?P\w+ ", "", row.text).split()[0]
            opcode, *modifiers = text.split(".")
            if opcode in OPCODES and not row.text.startswith("@!PT"):
                width = next((WIDTHS[m] for m in modifiers if m in WIDTHS), "b32")
                assert find_face(kernels[name][row.offset // 16]) == f"{OPCODES[opcode]}.{width}", row.text
                seen.add((opcode, width))
    assert len(seen) > 35
