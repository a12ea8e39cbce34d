"""Decide where the variables in shared memory are.

All kernels share the C function for a device function, so each variable must have the same offset in all kernels.
Variables that several kernels use come first. After the last of these that a kernel uses come the variables that only
this kernel uses, so that kernels don't reserve space for each other's. Dynamic shared memory is at the end of a block's
memory.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.asm.host.names import CVariable, Unsupported
from gpt.asm.host.parts import ModuleCode
from gpt.asm.host.variables import element_of, size_of
from gpt.ptx.quick import parse_declaration

_DYNAMIC = "(uint64_t)(t->shared_size - t->dynamic_shared)"


class _Variable(NamedTuple):
    size: int
    align: int
    dynamic: bool
    element: int


class Shared:
    """The offsets of the variables in shared memory, and the sizes that kernels need."""

    def __init__(self, code: ModuleCode) -> None:
        """Compute the layout. Faults are passed to `code.fault`."""
        self._variables: dict[tuple[str, str], _Variable] = {}  # by function ("" for the module) and name
        self._offsets: dict[tuple[str, str], int] = {}
        self._needs: dict[str, tuple[int, int]] = {}
        module = code.module
        for item in module.items:
            if item.kind == "variable":
                self._declare(code, "", item.start, item.end)
        for function in module.functions:
            for statement in code.statements(function):
                if statement.kind == "directive" and statement.head in (".shared", ".extern", ".align"):
                    self._declare(code, function.name, statement.start, statement.end)
        reached = {item.name: code.reached(item.name) for item in module.entries} if self._variables else {}
        users = {
            key: [kernel for kernel, names in reached.items() if (key[0] or key[1]) in names] for key in self._variables
        }
        ends = dict.fromkeys(reached, 0)
        end = 0
        for several in (True, False):
            for key, (size, align, dynamic, _) in self._variables.items():
                if dynamic or (len(users[key]) > 1) != several:
                    continue
                start = end if several else max((ends[kernel] for kernel in users[key]), default=0)
                self._offsets[key] = offset = -(-start // align) * align
                end = offset + size if several else end
                ends.update((kernel, offset + size) for kernel in users[key])
        for item in module.entries:
            names = reached.get(item.name, set())
            aligns = [one.align for key, one in self._variables.items() if (key[0] or key[1]) in names]
            self._needs[item.name] = ends.get(item.name, 0), max(aligns, default=1)

    def _declare(self, code: ModuleCode, function: str, start: int, end: int) -> None:
        node = parse_declaration(code.module.skeleton[start:end], lambda: code.module.where(start))
        words = [specifier.word for specifier in node.specifiers]
        if ".shared" in words:
            for one in node.declarators:
                try:
                    size, align = size_of(node.specifiers, one)
                    dynamic, element = ".extern" in words or not size, element_of(node.specifiers, one)
                    if function and not dynamic and (function, one.name) in self._variables:
                        raise Unsupported(f"'{one.name}' twice in shared memory of '{function}': rename one")
                    self._variables[function, one.name] = _Variable(size, align, dynamic, element)
                except Unsupported as error:
                    code.fault(start, str(error))

    def find(self, name: str, function: str) -> CVariable | None:
        """Look up a variable of a function, or else of the module."""
        for key in (function, name), ("", name):
            if found := self._variables.get(key):
                if found.dynamic:
                    return CVariable("shared", _DYNAMIC, element=found.element)
                offset = self._offsets[key]
                return CVariable("shared", f"{offset}ull", found.size, found.element, f"t->shared + {offset}")
        return None

    def needs(self, kernel: str) -> tuple[int, int]:
        """Return the bytes of static shared memory that a kernel needs, and the alignment of all its shared memory."""
        return self._needs[kernel]
