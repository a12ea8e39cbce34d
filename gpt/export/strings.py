"""Number the texts to which rows refer, as in the table StringIds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt.screen.demangle import readable

Names = tuple[int, int, int]  # for a kernel: demangled, short and mangled

_NAMELESS = re.compile(r"\((?:anonymous namespace|unnamed)\)::|\{[^{}]*\}::")


class Strings:
    """Stores each text once. A number can be reserved for a text that isn't known yet."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]  # by number
        self._numbers: dict[str, int] = {"": 0}
        self._kernels: dict[str, Names] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        found = self._numbers.get(text)
        return self._add(text) if found is None else found

    def _add(self, text: str) -> int:
        self._numbers[text] = len(self.texts)
        self.texts.append(text)
        return len(self.texts) - 1

    def reserve(self) -> int:
        """Reserve a number for a later text."""
        self.texts.append("")
        return len(self.texts) - 1

    def learn_kernels(self, mangled: Iterable[str]) -> None:
        """Add names of kernels. It's faster to do this for many of them at once."""
        new = [name for name in dict.fromkeys(mangled) if name not in self._kernels]
        for name, text in zip(new, readable(new), strict=True):
            self._kernels[name] = self.number(text), self.number(shorten_kernel(text)), self.number(name)

    def kernel(self, mangled: str) -> Names:
        """Return the numbers of a kernel's names."""
        if mangled not in self._kernels:
            self.learn_kernels([mangled])
        return self._kernels[mangled]


def shorten_kernel(name: str) -> str:
    """Shorten `void lib::gemm<float, 4>(float*)` to `gemm`, without namespaces, arguments and template arguments."""
    depth = 0
    kept: list[str] = []
    for character in _NAMELESS.sub("", name):
        if character == "(" and not depth and kept:
            break
        depth += (character == "<") - (character == ">" and depth > 0)
        if not depth and character != ">":
            kept.append(character)
    return "".join(kept).split(" ")[-1].split("::")[-1] or name
