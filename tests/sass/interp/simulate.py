"""Run cases from PTX on the simulated device: `python -m tests.sass.interp.simulate PTX-FOLDER OUT < case numbers`."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from tests.runtime.driving import begin, cu, function, launch, load, ok
from tests.sass.interp.cases import CASES, inputs


def copy(data: np.ndarray) -> ctypes.c_uint64:
    """Copy an array to the device, and return its address."""
    place = ctypes.c_uint64()
    ok(cu.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(data.nbytes)))
    ok(cu.cuMemcpyHtoD_v2(place, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)))
    return place


def main(folder: Path, out: Path) -> None:
    """Run the cases and write the final `out` of each, as one array per case."""
    begin()
    modules = {path.stem: load(path.read_bytes()) for path in folder.iterdir()}
    for number in map(int, sys.stdin.read().split()):
        case = CASES[number]
        words, result = inputs(case)
        places = copy(words), copy(result)
        kernel = function(modules[case.file], case.kernel)
        ok(launch(kernel, case.grid, case.block, *places, ctypes.c_int(case.n), shared=case.dynamic))
        ok(cu.cuCtxSynchronize())
        ok(cu.cuMemcpyDtoH_v2(result.ctypes.data_as(ctypes.c_void_p), places[1], ctypes.c_size_t(result.nbytes)))
        np.save(out / f"{number}.npy", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
