"""The weaver's own instructions, as nvdisasm reads them."""

import re

import pytest

from gpt.probe.sass import glue
from gpt.sass.words import Guard, dump_words
from tests import cuda

WORDS = {
    "MOV R3, R200": glue.move(3, 200),
    "IADD3 R3, RZ, UR40, RZ": glue.save_uniform(3, 40),
    "R2UR UR40, R3": glue.restore_uniform(40, 3),
    "MOV R3, 0xfffffff0": glue.set_to(3, -16),
    "IADD3 R3, R4, -0x10, RZ": glue.add(3, 4, -16),
    "IADD3 R3, R4, UR5, RZ": glue.add_uniform(3, 4, 5),
    "IMAD.WIDE R4, R4, -0x10, R6": glue.add_wide(4, 6, -16),
    "SEL R3, RZ, 0x1, !P2": glue.select(3, Guard(2, False)),
    "SEL R3, RZ, 0x1, P2": glue.select(3, Guard(2, True)),
    "LDC.64 R4, c[0x0][0x218]": glue.load_parameter(4, 0x218),
    "LDC R4, c[0x0][0x20]": glue.load_constant(4, 0x20),
    "STL [R1+-0x8], R4": glue.store_stack(4, -8),
    "LDL R4, [R1+-0x8]": glue.load_stack(4, -8),
    "P2R R3, PR, RZ, 0x5": glue.save_predicates(3, 5),
    "R2P PR, R3, 0x5": glue.restore_predicates(3, 5),
}


def test_glue_is_what_its_names_say(tmp_path):
    (tmp_path / "words").write_bytes(dump_words(WORDS.values()))
    try:
        text = cuda.run("nvdisasm", "-b", "SM90", tmp_path / "words")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert re.findall(r"\*/\s+(.*?)\s*;", text) == list(WORDS)
