"""PTX to code for the machine at hand, by way of C: what the simulated device runs.

`module` makes a C file of a module, `body` a C function of a PTX function, `use` C of an instruction, by the rows of
tables, whose form `table` explains: `integer`, `memory`, `control`, ... `backend` has the C compiler make a shared
object of it. What the C may ask of what runs it is in abi.h (runtime/host), what it is made of in device.h.

An instruction that no row fits is refused, with its line: nothing is approximated.
"""
