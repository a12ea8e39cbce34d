"""Kinds of records that go together: a reader asks a `Process` for some of these."""

from __future__ import annotations

CALLS = frozenset(
    ("api", "calls", "call", "clock", "dropped", "function", "ioctl", "recording")
)  # what is known of calls
RUNS = CALLS | {"counts", "count", "gpu_times", "gpu_time", "graph", "launches", "launch"}  # and of what they did
LOADS = frozenset(("device", "function", "library", "lookup", "module"))  # of code
COVERED = frozenset(("probed", "unprobed"))  # launches of kernels that were to be probed
SAVES = COVERED | {"buffer", "kernel", "map"}  # and what probes saved
COSTS = COVERED | {"kernel", "memusage", "times"}  # and what probes cost
DETAILS = frozenset(("ioctl details",))  # no records, but that those of ioctls are kept beside the calls that they are
GPU_TIMES = frozenset(("gpu_times", "gpu_time"))
GRAPHS = frozenset(("graph",))  # what launches of graphs ran
SITES = frozenset(("call_site", "stack"))  # where calls came from
TENSORS = frozenset(("tensor", "tensor_end"))
RANGES = frozenset(("range", "range_end"))  # of NVTX
