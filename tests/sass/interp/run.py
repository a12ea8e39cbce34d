"""Run a case on the interpreter."""

from __future__ import annotations

import struct

import numpy as np

from tests.sass.interp.cases import Case, Words, inputs
from tests.sass.interp.launch import Launch
from tests.sass.interp.loader import LoadedCubin
from tests.sass.interp.memory import GlobalMemory


def make_launch(cubin: LoadedCubin, case: Case, seed: int = 1, strict: bool = False) -> tuple[Launch, int]:
    """Return a launch that's ready to run, and the address of its `out`."""
    rng = np.random.default_rng(seed)
    memory = GlobalMemory(rng, 1 << 18)
    words, out = inputs(case)
    places = memory.allocate(words.nbytes, words.tobytes()), memory.allocate(out.nbytes, out.tobytes())
    launch = Launch(
        cubin,
        case.kernel,
        memory,
        grid=(case.grid, 1, 1),
        block=(case.block, 1, 1),
        parameters=struct.pack("<QQi", *places, case.n),
        rng=rng,
        dynamic=case.dynamic,
        strict=strict,
    )
    return launch, places[1]


def interpret(cubin: LoadedCubin, case: Case, seed: int = 1, strict: bool = False) -> tuple[Words, Launch]:
    """Return the final contents of the kernel's `out`."""
    launch, place = make_launch(cubin, case, seed, strict)
    launch.run()
    return np.frombuffer(launch.memory.read(place, inputs(case)[1].nbytes), np.uint32), launch
