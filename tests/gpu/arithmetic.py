"""Run the tests of tests/asm/host for floating point and matrix products on a real GPU, using random operands.

`python tests/gpu/arithmetic.py [LIBRARY]` prints a line for each test, and for each failure the instruction and the
GPU's result. tests/lab/edges.py covers the boundaries of all instructions.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.asm.host import test_floating, test_matrix
from tests.asm.host.driver import Driver

COUNT = 400  # operands of each instruction


class Gpu:
    """A GPU in place of the simulated device, with the methods that thread.Thread and test_matrix.simulate call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, text: str, data: bytes, name: str = "k", threads: int = 1) -> bytes:
        """Run a kernel on a buffer, and return the buffer."""
        text = re.sub(r"\.target \S+", ".target sm_90", text)  # some forms that are left out here need a newer one
        memory = self._driver.allocate(data)
        self._driver.launch(self._driver.function(self._driver.module(text), name), 1, threads, memory)
        self._driver.wait()
        found = self._driver.read(memory, len(data))
        self._driver.free(memory)
        return found

    def simulate(self, _: object, text: str, inputs: dict[str, list[int]]) -> dict[str, list[int]]:
        """Run kernels of one warp on words of 32 bits, and return their results."""
        found = {}
        for name, words in inputs.items():
            data = self.run(text, struct.pack(f"<{len(words)}I", *words), name, 32)
            found[name] = list(struct.unpack(f"<{len(words)}I", data))
        return found


def main() -> int:
    """Run all tests; return 1 if one failed."""
    gpu = Gpu(Driver(*sys.argv[1:2]))
    test_matrix.simulate = gpu.simulate
    tests = {
        **{name: lambda name=name: exact(gpu, name) for name in ("f16", "bf16", "f32", "f64")},
        "halfway": lambda: test_floating.test_halfway(gpu),
        "integers": lambda: test_floating.test_integers_to_floats(gpu),
        "small": lambda: test_floating.test_every_small_number(gpu),
        "atomic": lambda: test_floating.test_atomic_halves(gpu),
        "mma": lambda: test_matrix.test_mma(None),
        "mma.m8n8k4": lambda: test_matrix.test_quarters(None),
        "wmma": lambda: test_matrix.test_wmma(None),
    }
    failed = 0
    for name, test in tests.items():
        try:
            test()
            print(f"{name}: ok")
        except AssertionError as error:
            failed = 1
            print(f"{name}: {str(error).splitlines()[0]}")
    return failed


def exact(gpu: Gpu, name: str) -> None:
    """Check all instructions on a type."""
    form = test_floating.FORMATS[name]
    cases = [
        case for case in test_floating.cases_of(form) if not re.search("e[23]m[123]x2", case.text)
    ]  # sm_100 has them
    test_floating.check(gpu, cases, test_floating.operands_of(form, COUNT))


if __name__ == "__main__":
    sys.exit(main())
