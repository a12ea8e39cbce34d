"""Check pragmas as ptxas does: none of them changes what a kernel computes, but ptxas rejects some.

A pragma in a function is ignored unless it begins with a word that ptxas knows.
"""

from __future__ import annotations

import re

from gpt.asm.host.names import Unsupported
from gpt.ptx.tokens import STRING
from gpt.ptx.types import integer

_SYNTAX = re.compile(rf"\.pragma\s*({STRING}(?:\s*,\s*{STRING})*)\s*;", re.ASCII)
_STRINGS = re.compile(STRING)
_IN_BODIES = {"used_bytes_mask": (8, 3), "enable_smem_spilling": (8, 7), "frequency": (9, 0)}  # since .version
_NUMBERED, _NUMBER = ("used_bytes_mask", "frequency"), re.compile(r"-?(?:0[xX][\da-fA-F]+|\d+)", re.ASCII)
_OF_CALLS = {  # registers for calls; they change how the function is called, but not how kernels call it
    "abi_param_reg": range(1, 256),
    "retaddr_reg": range(4, 256),
}


def check_pragma(text: str, where: str, version: tuple[int, int]) -> None:
    """Raise Unsupported for a pragma that isn't allowed in a `kernel`, a `function`, the `head` of a kernel or the
    `module`.
    """
    found = _SYNTAX.fullmatch(text.strip())
    if not found:
        raise Unsupported(f"'{' '.join(text.split())}': a pragma has strings")
    for quoted in _STRINGS.findall(found[1]):
        _check(quoted[1:-1], where, version)


def _check(pragma: str, where: str, version: tuple[int, int]) -> None:
    word = next((word for word in (*_IN_BODIES, *_OF_CALLS) if pragma.startswith(word)), "")
    value = pragma[len(word) :].lstrip()
    number = integer(value)
    if word in _OF_CALLS and where in ("kernel", "function"):
        raise Unsupported(f"pragma '{pragma}': kernels can't call functions that have it")
    if word in _OF_CALLS and number not in _OF_CALLS[word] and pragma != "abi_param_reg all":
        raise Unsupported(f"pragma '{pragma}' without the number of a register")
    if word in _IN_BODIES and where in ("head", "module"):
        raise Unsupported(f"pragma '{pragma}' outside of a function's body")
    if not word and where == "module" and pragma != "nounroll":
        raise Unsupported(f"pragma '{pragma}' of a module, which has only 'nounroll'")
    if word in _IN_BODIES and version < _IN_BODIES[word]:
        raise Unsupported("pragma '{}' needs .version {}.{} or later".format(pragma, *_IN_BODIES[word]))
    if word == "enable_smem_spilling" and where == "function":
        raise Unsupported(f"pragma '{pragma}': only kernels have it")
    if (word == "frequency" and (number == 0 or value[:1] == "-")) or (
        word in _NUMBERED and not _NUMBER.fullmatch(value)
    ):
        raise Unsupported(f"pragma '{pragma}' without a number")
