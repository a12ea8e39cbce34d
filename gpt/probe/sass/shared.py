"""Make a woven kernel use the variables of the program's module, because its cubin is loaded a second time."""

from __future__ import annotations

from typing import NamedTuple

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.cubin_variables import Constant, Freed, Variables
from gpt.formats.kernel_edit import KernelEditor
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.woven import SharedVariable
from gpt.sass.kernels import Kernel

CONSTANT_BANK, ADDRESS_BANK = 3, 4  # the constants of a module, and the addresses of its other variables


class Shared(NamedTuple):
    """Addresses that the loader fills in, and constants to copy."""

    cubin: CubinEditor
    freed: list[Freed]
    constants: list[Constant]

    def locate(self) -> list[SharedVariable]:
        """Return the variables, once the cubin is built: `build` decides where sections are."""
        start = self.cubin.sections["offset"]
        freed = [
            SharedVariable(one.variable.name, "global", one.variable.size, int(start[one.section]) + one.offset, None)
            for one in self.freed
        ]
        return freed + [
            SharedVariable(one.name, "const", one.size, None, "always" if always else "taken")
            for one, always in self.constants
        ]


def share_variables(kernel: Kernel, editor: KernelEditor) -> Shared:
    """Free the addresses of variables in a kernel's cubin, and find the constants to copy. Raises LeftAlone."""
    # This includes parts of other operands, which does no harm.
    banks = kernel.code.parts(54, 5)
    if kernel.graph.calls_out:
        banks |= {ADDRESS_BANK, CONSTANT_BANK}
    if not banks & {ADDRESS_BANK, CONSTANT_BANK}:
        return Shared(editor.cubin, [], [])
    try:
        found = Variables(editor.cubin)
        freed = found.free_addresses(editor.section) if ADDRESS_BANK in banks else []
        constants = found.list_constants() if CONSTANT_BANK in banks else []
    except CannotEdit as error:
        raise LeftAlone("variables", error.fact, kernel.name) from None
    return Shared(editor.cubin, freed, constants)
