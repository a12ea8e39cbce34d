"""Sets of kinds of records. A reader tells `Process` which sets it needs."""

from __future__ import annotations

CALLS = frozenset(
    ("api", "calls", "call", "clock", "dropped", "function", "ioctl", "recording")
)  # records about calls and their functions
COUNTED = frozenset(("counts", "count"))  # calls without times
RUNS = CALLS | COUNTED | {"gpu_times", "gpu_time", "graph", "launches", "launch"}  # calls, and their work on the GPU
LOADS = frozenset(("device", "function", "library", "lookup", "module"))  # code that was loaded
COVERED = frozenset(("probed", "unprobed"))  # launches of kernels that should have had probes
SAVES = COVERED | {"buffer", "kernel", "map"}  # these, and the data that probes saved
COSTS = COVERED | {"kernel", "memusage", "times"}  # COVERED, and the cost of probes
DETAILS = frozenset(("ioctl details",))  # not a record kind: keep `ioctl` records, not only as calls
GPU_TIMES = frozenset(("gpu_times", "gpu_time"))
GRAPHS = frozenset(("graph",))  # what graph launches ran
SITES = frozenset(("call_site", "stack"))  # where calls came from
SAMPLES = frozenset(("sample", "stack"))  # what the host did
TENSORS = frozenset(("tensor", "tensor_end"))
NODES = frozenset(("graph_nodes",))  # which calls created the nodes of graphs
NODE_TIMES = frozenset(("node_times", "untimed"))
RANGES = frozenset(("range", "range_end"))  # NVTX
