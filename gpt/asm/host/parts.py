"""What the parts of this folder need of each other: a module and a function while their C is made."""

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

    def find(self, instruction: tree.Instruction) -> Match | str:
        """The row that an instruction fits, or why there is none."""

    def fault(self, offset: int, text: str) -> None:
        """Something that no C is made of."""

    def new_site(self, offset: int, text: str) -> int:
        """The number of a new site."""

    def statements(self, item: Item) -> list[Statement]:
        """The statements of a function."""

    def head(self, name: str) -> tree.FunctionNode:
        """A function as it is declared."""

    def is_function(self, name: str) -> bool:
        """Whether a name is that of a device function."""

    def is_defined(self, name: str) -> bool:
        """Whether the module has its body."""

    def targets(self) -> str:
        """The name of the table of what indirect calls may call."""

    def is_kernel(self, name: str) -> bool:
        """Whether a name is that of a kernel."""

    def parameters(self, item: Item) -> list[params.Param]:
        """Where the parameters of a kernel are."""

    def signature(self, head: tree.FunctionNode) -> str:
        """The head of a function in C."""

    def find_place(self, name: str, function: str) -> CVariable | None:
        """A variable of the module, or a function, as a function sees it."""

    def declare(self, specifiers: tuple[tree.Specifier, ...], declarator: tree.Declarator, function: str) -> CVariable:
        """A variable of the module that is declared in a function. Raises Unsupported."""

    def reached(self, kernel: str) -> set[str]:
        """The kernel, and the names of all that it leads to."""


class FunctionCode(Protocol):
    """A function (body.py)."""

    code: ModuleCode
    item: Item
    head: tree.FunctionNode
    is_kernel: bool
    index: int

    def find_register(self, name: str, parts: tuple[str, ...] = ()) -> CRegister | None:
        """A register, None if there is none of that name."""

    def find_place(self, name: str) -> CVariable | None:
        """A variable, parameter or function."""

    def find_label(self, name: str) -> CLabel | None:
        """A label."""

    def find_list(self, name: str) -> tree.Statement | None:
        """What `NAME: .branchtargets` and the like declare."""

    def use_stack(self) -> None:
        """The function allocates stack."""

    def new_site(self) -> int:
        """A site for the instruction that is being written."""
