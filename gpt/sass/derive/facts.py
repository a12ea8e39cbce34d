"""Look up the facts of gpt/sass/arch.py in what ptxas makes of a kernel that copies a number."""

from __future__ import annotations

import re

from gpt.base.errors import GptError
from gpt.sass.arch import ARCHS, SassArch
from gpt.sass.derive.kernels import compile_ptx
from gpt.sass.derive.oracle import Oracle
from gpt.sass.derive.table import iter_code
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


def find_facts(name: str, ptxas: str, nvdisasm: str) -> SassArch:
    """Return the facts of an architecture. Whether it was proven on hardware isn't looked up here."""
    cubin = compile_ptx(ptxas, name, COPY)
    oracle = Oracle(nvdisasm, name, cubin[:64])
    words = list(iter_code(cubin))
    texts = [text or "" for text in oracle.texts(words)]
    entry = _search(r"(\w+) R1, c\[0x0\]\[(0x[0-9a-f]+)\]", texts[:1], "the stack pointer")
    uniform = _search(r"LDG.* desc\[(UR\d+)\]\[", texts, "a load with a descriptor")
    descriptor = _search(rf"64 {uniform[1]}, c\[0x0\]\[(0x[0-9a-f]+)\]", texts, "the descriptor")
    other = {entry[2], descriptor[1]}
    constants = [found for text in texts for found in re.findall(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text)]
    parameters = [found for found in constants if found not in other]
    if not parameters:
        raise GptError(f"{name}: no parameter is loaded")
    load = next(word for word, text in zip(words, texts, strict=True) if text.startswith("LDG"))
    wide = oracle.texts([with_bits(load, 32, 6, 63)])[0]
    return SassArch(
        name,
        min(int(found, 16) for found in parameters),
        int(descriptor[1], 16),
        int(entry[2], 16),
        entry[1],
        6 if "desc[URZ]" in (wide or "") else 8,
        _branch(words, texts),
        ARCHS[name].proven,
    )


def _branch(words: list[int], texts: list[str]) -> str:
    """Return the form of a branch's distance: that of the branches in the kernel, one of which leads to itself."""
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


def _search(pattern: str, texts: list[str], what: str) -> re.Match[str]:
    for text in texts:
        if found := re.search(pattern, text):
            return found
    raise GptError(f"no instruction that loads {what}")
