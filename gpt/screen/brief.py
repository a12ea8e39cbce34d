"""Shorten the names of kernels.

    at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*)
    vectorized_layer_norm_kernel<float, float, false>

Parameters are left out first, then namespaces and ABI tags (numba's have 100 letters), and then the end of the name. If
names would become equal, they keep the part in which they differ.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Sequence

from gpt.base.printable import shorten
from gpt.screen.demangle import readable

SPACES = re.compile(r"\(anonymous namespace\)::|\b[A-Za-z_]\w*::|\[abi:\w+\]")
WORD = string.ascii_letters + string.digits + "_"


def brief_name(kernel: str) -> str:
    """Return a name of a kernel for a sentence: demangled, without parameters and namespaces."""
    return _without_spaces(_without_parameters(readable([kernel])[0]))


def fit_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten readable names to at most `width` columns each. Leading spaces are kept."""
    indents = [len(name) - len(name.lstrip()) for name in names]
    told = _tell_apart([name.lstrip() for name in names], width - max(indents, default=0))
    return [" " * indent + told[name.lstrip()] for name, indent in zip(names, indents, strict=True)]


def fit_paths(paths: Sequence[str], width: int) -> list[str]:
    """Shorten paths to at most `width` columns each, in the middle, or where the results would otherwise be equal."""
    found = {path: shorten(path, width, middle=True) for path in paths}
    for alike in _groups(found):
        found |= _cut_apart({path: path for path in alike}, width)
    return [found[path] for path in paths]


def _without_parameters(name: str) -> str:
    """Return `f<int>` for `f<int>(char*)`."""
    depth = 0
    for at in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            return name[:at]
    return name


def _without_spaces(name: str) -> str:
    return SPACES.sub("", name) or name


def _tell_apart(names: Sequence[str], width: int) -> dict[str, str]:
    """Return each name in at most `width` columns."""
    bare = {name: _without_parameters(name) for name in names}
    forms = {name: (name, bare[name], _without_spaces(bare[name])) for name in names}
    found = {name: shorten(_choose(forms[name], width), width, middle=False) for name in names}
    for alike in _groups(found):
        texts = {name: forms[name][2] for name in alike}
        if len({*texts.values()}) < len(alike):
            texts = {name: name for name in alike}
        found |= _cut_apart(texts, width)
    return found


def _choose(forms: Sequence[str], width: int) -> str:
    return next((form for form in forms if len(form) <= width), forms[-1])


def _groups(found: dict[str, str]) -> list[list[str]]:
    """Return groups of names that have the same short form."""
    groups: dict[str, list[str]] = {}
    for name, text in found.items():
        groups.setdefault(text, []).append(name)
    return [alike for alike in groups.values() if len(alike) > 1]


def _cut_apart(texts: dict[str, str], width: int) -> dict[str, str]:
    """Shorten texts by leaving out a part that they share. If some still look the same, these are shortened again,
    separately.
    """
    same = os.path.commonprefix([*texts.values()])  # noqa: RUF071 - by character
    begin = len(same.rstrip(WORD))
    begin = begin if len(same) - begin < width // 3 else len(same)
    found = {}
    for name, text in texts.items():
        tail = text[begin : begin + max(1, width // 2)]
        cut = text if len(text) <= width else f"{text[: max(1, width - 2 - len(tail))]}…{tail}"
        found[name] = shorten(cut if text.endswith(tail) or cut is text else cut + "…", width, middle=False)
    for alike in _groups(found):
        if len(alike) < len(texts):
            found |= _cut_apart({name: texts[name] for name in alike}, width)
    return found
