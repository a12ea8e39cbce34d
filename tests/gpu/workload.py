"""Workloads for tests/gpu/debloat.py, which slims libraries for them: `python tests/gpu/workload.py NAME [cuda|cpu]`.

Each is a function in a module of this folder that takes a device's name and returns the text to print. The text, which
depends on fixed seeds, goes to standard output. Standard error gets one line of JSON: `seconds`, the time from the
start, including imports; and in bytes, `resident`, the peak resident host memory; `mapped`, the part of it that's
mapped from files at the end; `gpu`, the GPU's memory in use at the end, when all modules are loaded and allocators
still hold their memory.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time

START = time.perf_counter()

WORK = {  # name -> module and function
    "mlp": ("models", "mlp"),
    "generate": ("generate", "main"),
    "resnet": ("models", "resnet"),
    "train": ("models", "train"),
    "compile": ("compiled", "compiled"),
    "jax": ("xla", "xla"),
}


def gpu_bytes() -> int:
    """Return the used memory of the first GPU, as its driver reports it. Raises OSError."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        driver.cuCtxSetCurrent(context),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
    ):
        if status:
            raise OSError(f"the driver says {status}")
    return total.value - free.value


def facts(seconds: float, device: str) -> dict[str, float]:
    """Return the resources that the process has used so far."""
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith(("VmHWM", "RssFile")))
    kib = {key: int(value.split()[0]) for key, value in status.items()}
    gpu = gpu_bytes() if device == "cuda" else 0
    return {"seconds": seconds, "resident": kib["VmHWM"] << 10, "mapped": kib["RssFile"] << 10, "gpu": gpu}


def main() -> None:
    """Do the named work."""
    name, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda"
    module, function = WORK[name]
    work = getattr(importlib.import_module(module), function)
    if name == "generate":
        work(["--device", device])  # it prints its tokens itself
    else:
        print(*(f"{value:.4e}" for value in work(device)))
    seconds = time.perf_counter() - START
    print(json.dumps(facts(seconds, device)), file=sys.stderr)


if __name__ == "__main__":
    main()
