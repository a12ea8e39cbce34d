"""Run a woven PTX module on the simulated device: `python -m tests.probe.sass.simulate PTX NUMBER SIZE OUT`.

NUMBER chooses a case; the kernel gets a buffer of SIZE bytes in its added parameter, and OUT gets its contents.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from tests.runtime.driving import begin, cu, function, launch, load, ok
from tests.sass.interp.cases import CASES, inputs
from tests.sass.interp.simulate import copy


def main(ptx: Path, number: int, size: int, out: Path) -> None:
    """Run the case."""
    begin()
    case = CASES[number]
    words, result = inputs(case)
    buffer = np.zeros(size, np.uint8)
    places = copy(words), copy(result), copy(buffer)
    kernel = function(load(ptx.read_bytes()), case.kernel)
    arguments = *places[:2], ctypes.c_int(case.n), places[2]
    ok(launch(kernel, case.grid, case.block, *arguments, shared=case.dynamic))
    ok(cu.cuCtxSynchronize())
    ok(cu.cuMemcpyDtoH_v2(buffer.ctypes.data_as(ctypes.c_void_p), places[2], ctypes.c_size_t(size)))
    out.write_bytes(buffer.tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
