"""Compile PTX to machine code, with a cache in front of the back ends.

`backend` defines the interface of a back end and `backends` lists them: `ptxas` for GPUs, `host` for the simulated
device. `find` chooses among the installed ptxas, and `reports` parses their output. `assembler` looks in the cache
before it calls a back end; `stream` turns the results into records.
"""
