"""Back ends that turn PTX into code: `ptxas` for a GPU.

`find` finds ptxas and chooses among several, `ptxas` runs it, `cache` keeps what it made, `resources` says what
the kernels of a cubin need. The back end `host`, for the simulated device, will stand beside them.
"""
