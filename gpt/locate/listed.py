"""Match a handwritten list of kernel names with libraries, and report names that match no kernel.

A trace contains names that a program looked up, whatever file these kernels are in. A list is written by hand or copied
from a profiler, so a name without a kernel is a mistake; and then everything that the right name would have kept looks
unused.

A name refers to the kernel with exactly this name. If there's none, it's treated as a demangled name, possibly without
return type, parameters, template arguments and namespaces, and must then match exactly one kernel.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from gpt.base.errors import GptError
from gpt.screen.demangle import demangle

SHOWN, NAME_LENGTH = 3, 100  # names in a message, characters of each
MAX_FUNCTIONS = 1 << 16  # functions that are remembered as suggestions
PREFIX = re.compile(r"_ZN?[rVK]*(?:St)?")  # the part of a mangled name before its first identifier
LENGTH = re.compile(r"L?(\d{1,4})")
ANONYMOUS = "(anonymous namespace)::"


class Listed:
    """The names in the lists, each with the path of its list."""

    def __init__(self, lists: Mapping[str, str]) -> None:
        self._lists = lists
        self._missing = set(lists)  # names without a kernel so far, as they're written
        self._readable: dict[str, list[str]] = {}
        for name in lists:
            if not name.startswith("_Z"):
                self._readable.setdefault(_squeezed(name), []).append(name)
        self._words = {word for name in self._readable for word in re.findall(r"\w+", name)}
        self._fits: dict[str, set[str]] = {}  # missing name -> kernels that it may refer to
        self._functions: dict[str, str] = {}  # bare function name -> one of its kernels
        self._no_kernels: set[str] = set()  # names of device functions

    @property
    def settled(self) -> bool:
        """Return whether every name has a kernel. For demangled names, that's only known after the last library."""
        return not self._missing

    def look(self, kernels: set[str], functions: set[str]) -> list[str]:
        """Add the names in an element. Return the kernels that `fit` must compare with demangled names."""
        self._missing -= kernels
        if self.settled:
            return []
        self._no_kernels |= self._missing & functions
        maybe = []
        for kernel in kernels:
            function = function_of(kernel)
            if function in self._words:
                maybe.append(kernel)
            if len(self._functions) < MAX_FUNCTIONS:
                self._functions.setdefault(function, kernel)
        return maybe

    def fit(self, kernels: Iterable[str]) -> set[str]:
        """Return the kernels to which a demangled name may refer."""
        ordered = sorted(set(kernels))
        found = set()
        for kernel, text in zip(ordered, demangle(ordered), strict=True):
            for form in forms(text) & self._readable.keys():
                for name in self._readable[form]:
                    self._fits.setdefault(name, set()).add(kernel)
                    found.add(kernel)
        return found

    def faults(self) -> list[GptError]:
        """Return what's wrong with names. Call this after the last library."""
        missing: dict[str, list[str]] = {}
        found: list[GptError] = []
        for name in sorted(self._missing):
            fits = self._fits.get(name, set())
            if not fits:
                missing.setdefault(self._lists[name], []).append(name)
            elif len(fits) > 1 and len(found) < SHOWN:
                fact = f"{quoted([name])} matches {len(fits)} kernels: {quoted(fits)}"
                found.append(GptError(fact, self._lists[name]))
        for path, names in missing.items():
            hints = "; ".join(self._hints(names[:SHOWN]))
            found.append(GptError(f"used, but in no library: {quoted(names)}" + (f" ({hints})" if hints else ""), path))
        return found

    def _hints(self, names: list[str]) -> Iterator[str]:
        for name in names:
            if name in self._no_kernels:
                yield f"{quoted([name])} is a device function"
            elif close := difflib.get_close_matches(function_of(name)[:NAME_LENGTH], self._functions, 1):
                yield f"did you mean {quoted([self._functions[close[0]]])}?"


def function_of(name: str) -> str:
    """Return the name of a function without anything else: `k` for `_ZN2ns1kIfEEvPT_` and for `void
    ns::k<float>(float*)`.
    """
    if start := PREFIX.match(name):
        function, position = "", start.end()
        while length := LENGTH.match(name, position):
            position = length.end() + int(length[1])
            function = name[length.end() : position]
        return function or name
    words = re.findall(r"\w+", re.split("[<(]", name.replace(ANONYMOUS, ""), maxsplit=1)[0])
    return words[-1] if words else name


def forms(text: str) -> set[str]:
    """Return all spellings of a demangled kernel name, with fewer and fewer parts, and without unnecessary blanks."""
    text = _squeezed(text)
    found = {text}
    for whole in (text, _before(text, "(", ")")):
        found |= {whole, name := whole.removeprefix("void ")}
    bare = _before(name, "<", ">")
    return found | {bare, bare.rpartition("::")[2]}


def _squeezed(text: str) -> str:
    return re.sub(r" ?([^\w ]) ?", r"\1", re.sub(r"\s+", " ", text).strip())


def _before(text: str, opening: str, closing: str) -> str:
    """Return the text before the parentheses at its end. If it doesn't end with parentheses, return all of it."""
    depth = 0
    for position in range(len(text) - 1, -1, -1) if text.endswith(closing) else ():
        depth += (text[position] == closing) - (text[position] == opening)
        if not depth:
            return text[:position]
    return text


def quoted(names: Iterable[str]) -> str:
    """Return the first names, shortened and in quotes, and the number of the others."""
    ordered = sorted(names)
    shown = ", ".join(
        f"'{name if len(name) <= NAME_LENGTH else name[:NAME_LENGTH] + '...'}'" for name in ordered[:SHOWN]
    )
    return shown + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")
