"""Compile PTX to code for this machine's processor, through C. The simulated device runs the result.

`module` translates a module to a C file, `body` a PTX function to a C function, and `use` an instruction to C
statements. The translation of each instruction is a row in a table (`integer`, `memory`, `control`, ...); `table`
explains the format. `backend` compiles the C file to a shared object. abi.h (runtime/host) declares the services that
the generated code can call, and device.h the functions that it consists of.

An instruction that matches no row is rejected, with its line. Nothing is approximated.
"""
