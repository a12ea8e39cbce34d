"""Advice against the causes of idle times."""

from __future__ import annotations

ACTIONS = {  # advice, by the type of the function that a cause names
    "memory": "allocate or register memory before the loop, or take it from a pool that keeps it",
    "module": "load code once, before the work begins: CUDA_MODULE_LOADING=EAGER, or a warm-up",
    "kernel": "a launch that takes this long loads code: CUDA_MODULE_LOADING=EAGER, or a warm-up",
    "memcpy": "copy from pinned memory, which lets the host go on",
    "sync": "the host waits for something other than this GPU, or the system wakes it late",
    "graph": "instantiate graphs once, before the loop",
    "context": "create contexts once, before the loop",
}
AT_ONCE = "copy more at once, since such small copies take hardly longer than empty ones"
ONCE = ("memory", "module", "graph", "context")  # types of functions that needn't be called in each step
HINT = "; NVTX ranges or --sample-host would say which"
ASIDE = "do that in another thread while the GPU works"
UNLESS = ", unless it is waiting for requests"
SLEEP = "the host sleeps: wait for an event instead, or sleep less"
LISTEN = "the host waits for input: if that's requests, the GPU has nothing to do; otherwise, let the sender work ahead"
AHEAD = "the host waits for another thread or process: make that one faster, or let it work ahead"
COMPILE = "compile before the loop, for shapes that don't change, or keep the compiler's results in a cache"
UNLOCK = "hold that lock for less time; for the GIL, use processes instead of threads"
ELSE = "call it less often, or in another thread"
