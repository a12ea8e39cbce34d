"""Why a kernel of machine code, or a place in one, is left alone. Records have the code, people read the text."""

from __future__ import annotations

TABLE = {
    # A kernel
    "closed_library": "it is of a library of NVIDIA's whose code is closed",
    "unreadable": "its cubin makes no sense",
    "no_table": "there is no instruction table for its architecture",
    "unknown_opcode": "the table of its architecture lacks an instruction",
    "unbounded": "its instructions do not tell where it goes on",
    "unknown_entry": "it does not begin as ptxas lets a kernel begin",
    "not_proven": "woven code of this architecture has not been proven on hardware",
    # A place
    "no_face": "no PTX instruction is known that it can be shown as",
    "never_runs": "nothing leads to it",
    "few_registers": "fewer registers are free than --registers asks for",
}
