"""Every row of the instruction table is used: an instruction that matches it is found, and the generated C compiles.

forms.py generates the instructions. Rows for which it guesses the wrong operands have an example here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from gpt.asm.host.backend import FLAGS, HEADERS, find_compiler
from gpt.asm.host.module import ModuleWriter
from gpt.asm.host.opcodes import TABLE
from gpt.asm.host.table import Match, Row
from gpt.ptx import tree
from tests.asm.host import forms
from tests.tiers import full

DIALECTS = (("sm_90a", "8.7"), ("sm_100a", "9.1"), ("sm_75", "6.3"), ("sm_13", "3.0"))
FORMS = 25  # forms tried per row
FUNCTIONS = (
    ".func f0() { ret; }\n.func (.param .b32 z) f1() { ret; }\n"
    ".func f2(.param .b32 a) { ret; }\n.func (.param .b32 z) f3(.param .b32 a) { ret; }\n"
)
LOCALS = (
    ".reg .b8 %pair_; .param .b32 result_, given_; targets_: .branchtargets end_;"
    " prototype_: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
)
EXAMPLES = [  # one instruction each
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%b32_1, %b32_2}, [%b64_1];",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%b64_1], {%b32_1, %b32_2};",
    "atom.global.cas.b32 %b32_1, [%b64_1], %b32_2, %b32_3;",
    "atom.cas.global.b32 %b32_1, [%b64_1], %b32_2, %b32_3;",
    "atom.add.global.L2::cache_hint.u32 %u32_1, [%b64_1], %u32_2, %b64_2;",
    "atom.exch.global.L2::cache_hint.b32 %b32_1, [%b64_1], %b32_2, %b64_2;",
    "red.global.add.L2::cache_hint.u32 [%b64_1], %u32_2, %b64_2;",
    "red.add.global.L2::cache_hint.u32 [%b64_1], %u32_2, %b64_2;",
    "bra end_;",
    "brx.idx %b32_1, targets_;",
    "call f0;",
    "call (result_), f1;",
    "call (result_), f3, (given_);",
    "call (result_), %b64_1, (given_), prototype_;",
    "add.f32.f16 %f32_1, %b16_2, %f32_3;",
    "sub.f32.bf16 %f32_1, %b16_2, %f32_3;",
    "fma.rn.f32.f16 %f32_1, %b16_2, %b16_3, %f32_4;",
    "mad.f32 %f32_1, %f32_2, %f32_3, %f32_4;",
    "cvt.rn.f16x2.e4m3x2 %b32_1, %b16_2;",
    "cvt.rn.f16x2.e2m3x2 %b32_1, %b16_2;",
    "cvt.rn.f16x2.e2m1x2 %b32_1, %pair_;",
    "cvt.rn.satfinite.e2m1x2.f32 %pair_, %f32_2, %f32_3;",
    "cvt.rn.satfinite.e2m1x2.f16x2 %pair_, %b32_2;",
    "lop3.b32 %b32_1, %b32_2, %b32_3, %b32_4, 0x96;",
    "lop3.or.b32 %b32_1|%p1, %b32_2, %b32_3, %b32_4, 0x96, %p2;",
    "elect.sync %b32_1|%p1, -1;",
    "setmaxnreg.inc.sync.aligned.u32 232;",
]


class Recorder(ModuleWriter):
    """A module that records the row of each instruction."""

    def __init__(self, lines: Sequence[str], target: str, version: str) -> None:
        head, kernel, body = forms.head(target, version).partition(".visible")
        text = "".join([head, FUNCTIONS, kernel, body, LOCALS, "\n".join(lines), "\nend_: ret; }\n"])
        super().__init__(text.encode(), "rows")
        self.first = text.count("\n") - len(lines)
        self.rows: list[Row | None] = []

    def find(self, instruction: tree.Instruction) -> Match | str:
        match = super().find(instruction)
        self.rows.append(match.row if isinstance(match, Match) else None)
        return match


@pytest.mark.parametrize("step", [7, full(1)])
def test_every_row_makes_c_that_compiles(tmp_path, step):
    rows = [row for group in TABLE.rows.values() for row in group]
    left = {id(row): row for row in rows[::step]}
    compiler, _ = find_compiler()
    for dialect in DIALECTS:
        lines = [line for row in left.values() for line in forms.forms_of(row, FORMS)] + EXAMPLES
        judge = Recorder(lines, *dialect)
        judge.write()
        faulty = {int(where.rpartition(":")[2]) - judge.first for where, _ in judge.faults}
        taken = [line for number, line in enumerate(lines) if number not in faulty]
        recorder = Recorder(taken, *dialect)
        recorder.write()
        rows = recorder.rows[-1 - len(taken) : -1]  # without the functions before, and without the last ret
        chosen = [line for line, row in zip(taken, rows, strict=True) if left.pop(id(row), None)]
        path = tmp_path / f"{dialect[0]}.c"
        path.write_text(Recorder(chosen, *dialect).write(), "latin-1")
        command = [*compiler, "-O0", *FLAGS, "-iquote", str(HEADERS), path.name, "-o", f"{path.stem}.so", "-lm"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert not done.returncode, done.stderr[:2000]
    assert [row.form for row in left.values()] == []
