"""Compile PTX for this machine's CPU, through C. The simulated device runs the result.

`module` turns a module into a C file, `body` a PTX function into a C function, and `use` an instruction into C
statements. The translation of each instruction is a row of a table (`integer`, `memory`, `control`, ...); `table`
explains the format. `backend` compiles the C file to a shared object. abi.h (runtime/host) declares the services that
the generated code may call, device.h the functions it's made of.

An instruction that matches no row is rejected with its line; nothing is approximated.
"""
