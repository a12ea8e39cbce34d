"""Sets of record kinds: a reader asks a `Process` for the sets that it needs."""

from __future__ import annotations

CALLS = frozenset(
    ("api", "calls", "call", "clock", "dropped", "function", "ioctl", "recording")
)  # records about calls and their functions
COUNTED = frozenset(("counts", "count"))  # calls without times
RUNS = CALLS | COUNTED | {"gpu_times", "gpu_time", "graph", "launches", "launch"}  # calls and their work
LOADS = frozenset(("device", "function", "library", "lookup", "module"))  # loaded code
COVERED = frozenset(("probed", "unprobed"))  # launches of kernels that were to be probed
SAVES = COVERED | {"buffer", "kernel", "map"}  # also the data that probes saved
COSTS = COVERED | {"kernel", "memusage", "times"}  # also the cost of probes
DETAILS = frozenset(("ioctl details",))  # not a record kind: keep `ioctl` records, not only as calls
GPU_TIMES = frozenset(("gpu_times", "gpu_time"))
GRAPHS = frozenset(("graph",))  # what graph launches ran
SITES = frozenset(("call_site", "stack"))  # where calls came from
SAMPLES = frozenset(("sample", "stack"))  # what the host did
TENSORS = frozenset(("tensor", "tensor_end"))
NODES = frozenset(("graph_nodes",))  # which calls created the nodes of graphs
NODE_TIMES = frozenset(("node_times", "untimed"))
RANGES = frozenset(("range", "range_end"))  # NVTX
