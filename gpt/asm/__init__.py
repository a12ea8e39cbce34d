"""PTX to code: back ends that make it, and the cache before them.

`backend` says what one is and `backends` which there are: `ptxas` for GPUs, with `find`, which chooses among several,
and `reports`, which reads what it says. `assembler` asks the cache first, `stream` makes records of what came out.
"""
