"""Interfaces between the files of this folder: a module and a function during their translation to C."""

from __future__ import annotations

from typing import Protocol

from gpt.asm.host.names import CLabel, CRegister, CVariable
from gpt.asm.host.needs import Dialect
from gpt.asm.host.table import Match
from gpt.ptx import params, tree
from gpt.ptx.scan import Item, Module, Statement


class ModuleCode(Protocol):
    """A module (module.py)."""

    module: Module
    dialect: Dialect

    @property
    def has_abi(self) -> bool:
        """True if calls follow the ABI."""

    def find(self, instruction: tree.Instruction) -> Match | str:
        """Return the row that an instruction matches, or the reason why no row does."""

    def fault(self, offset: int, text: str) -> None:
        """Record a reason why the module can't be translated."""

    def new_site(self, offset: int, text: str) -> int:
        """Add a site and return its number."""

    def statements(self, item: Item) -> list[Statement]:
        """Return the statements of a function."""

    def head(self, name: str) -> tree.FunctionNode:
        """Return the head of a function."""

    def is_function(self, name: str) -> bool:
        """Return whether a name belongs to a device function."""

    def is_defined(self, name: str) -> bool:
        """Return whether the module contains the body of a function."""

    def targets(self) -> str:
        """Return the name of the table with the targets of indirect calls."""

    def is_kernel(self, name: str) -> bool:
        """Return whether a name belongs to a kernel."""

    def parameters(self, item: Item) -> list[params.Param]:
        """Return the layout of a kernel's parameters."""

    def signature(self, head: tree.FunctionNode) -> str:
        """Return the head of a function in C."""

    def find_place(self, name: str) -> CVariable | None:
        """Look up a variable or function of the module. Raises Unsupported if it's declared later."""

    def declare(self, specifiers: tuple[tree.Specifier, ...], declarator: tree.Declarator, function: str) -> CVariable:
        """Declare a variable of the module within a function. Raises Unsupported."""

    def reached(self, kernel: str) -> set[str]:
        """Return the kernel and the names of everything it uses, directly or indirectly."""


class FunctionCode(Protocol):
    """A function (body.py)."""

    code: ModuleCode
    item: Item
    head: tree.FunctionNode
    is_kernel: bool
    index: int

    def find_register(self, name: str, parts: tuple[str, ...] = ()) -> CRegister | None:
        """Look up a register; None if it isn't declared."""

    def find_place(self, name: str) -> CVariable | None:
        """Look up a variable, parameter or function."""

    def find_label(self, name: str) -> CLabel | None:
        """Look up a label."""

    def find_list(self, name: str) -> tree.Statement | None:
        """Look up a list that `NAME: .branchtargets` or the like declares."""

    def use_stack(self) -> None:
        """Note that the function allocates stack."""

    def new_site(self) -> int:
        """Make a site for the current instruction."""
