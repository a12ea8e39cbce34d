"""Look up the facts for gpt/sass/arch.py in a kernel that copies a number, as ptxas compiles it."""

from __future__ import annotations

import re

from gpt.base.errors import GptError
from gpt.sass.arch import ARCHS, SassArch
from gpt.sass.derive.kernels import compile_ptx
from gpt.sass.derive.oracle import Oracle
from gpt.sass.derive.table import iter_code
from gpt.sass.tables import table_of
from gpt.sass.words import SIZE, TARGETS, target_of, with_bits

COPY = """
.visible .entry copy(.param .b64 at) {
  .reg .b64 p; .reg .b32 a; .reg .pred q;
  ld.param.b64 p, [at];
AGAIN:
  ld.volatile.global.b32 a, [p];
  setp.eq.s32 q, a, 0;
  @q bra AGAIN;
  st.global.b32 [p+4], a;
  ret;
}
"""

CROWD = 200  # parameters, more than there are uniform registers


def find_highest_uniform(name: str, ptxas: str) -> int:
    """Return the highest uniform register that ptxas uses in a kernel that needs hundreds.

    The field has room for more from sm_100 on, and nvdisasm prints any number. The kernel multiplies by its parameters
    in a loop, so that ptxas keeps as many as it can in uniform registers. Before sm_90, it has operands in the constant
    bank instead.
    """
    numbers = range(CROWD)
    text = f"""
.visible .entry crowd(.param .align 16 .b8 numbers[{4 * CROWD}]) {{
  .reg .b32 a<{CROWD}>, n, s; .reg .pred q;
  mov.u32 n, %tid.x;
  {"".join(f"ld.param.b32 a{k}, [numbers+{4 * k}]; " for k in numbers)}
AGAIN:
  ld.volatile.shared.b32 s, [n];
  {"".join(f"mad.lo.u32 s, s, a{k}, n; xor.b32 s, s, a{(7 * k + 3) % CROWD}; " for k in numbers)}
  st.volatile.shared.b32 [n+4], s;
  add.u32 n, n, 1;
  setp.lt.u32 q, n, s;
  @q bra AGAIN;
  ret;
}}
"""
    table = table_of(name)
    effects = [table.effect(word) for word in iter_code(compile_ptx(ptxas, name, text))]
    return max((effect.reads.UR | effect.writes.UR).bit_length() for effect in effects) - 1


def find_facts(name: str, ptxas: str, nvdisasm: str) -> SassArch:
    """Return the facts of an architecture. Whether it was proven on hardware can't be looked up here."""
    cubin = compile_ptx(ptxas, name, COPY)
    oracle = Oracle(nvdisasm, name, cubin[:64])
    words = list(iter_code(cubin))
    texts = [text or "" for text in oracle.texts(words)]
    _, entry = _find(r"(\w+)\S* R1, .*c\[0x0\]\[(0x[0-9a-f]+)\]", texts[:1], "the stack pointer")
    place, descriptor = _find(r"U?LDCU?\.64 (UR\d+), c\[0x0\]\[(0x[0-9a-f]+)\]", texts, "the descriptor")
    _, parameter = _find(r"(LDC\.64|MOV) R[02-9], c\[0x0\]\[(0x[0-9a-f]+)\]", texts, "the parameter")
    last = oracle.texts([with_bits(words[place], 16, 6, 63)])[0] or ""
    return SassArch(
        name,
        parameters=int(parameter[2], 16),
        descriptor=int(descriptor[2], 16),
        stack_pointer=int(entry[2], 16),
        entry=entry[1],
        uniform_bits=6 if " URZ," in last else 8,
        branch=_branch(words, texts),
        proven=ARCHS[name].proven,
    )


def _branch(words: list[int], texts: list[str]) -> str:
    """Return the form of distance that fits all branches of the kernel; the last branch jumps to itself."""
    branches = [
        (word, int(found[1], 16))
        for word, text in zip(words, texts, strict=True)
        if (found := re.search(r"\bBRA \.([-+]0x[0-9a-f]+)$", text))
    ]
    if {distance for _, distance in branches} & {0} and any(distance < -SIZE for _, distance in branches):
        for form in ("split", "whole"):
            if form in TARGETS and all(target_of(word, form, 0) == distance for word, distance in branches):
                return form
    raise GptError("branches in no form that's known")


def _find(pattern: str, texts: list[str], what: str) -> tuple[int, re.Match[str]]:
    for place, text in enumerate(texts):
        if found := re.match(pattern, text):
            return place, found
    raise GptError(f"no instruction that loads {what}")
