"""Launches described as data, which a separate process makes on a real GPU or the simulated device.

If a launch breaks the context or the process, its answer is an error; later launches run in a new process.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.asm.host.driver import CudaError, Driver  # noqa: E402

STRIP = bytes([0xA5]) * 4096  # guard area after a buffer, which must stay unchanged
STACK = 16 << 10  # stack bytes per thread, because the driver can't know the depth of a recursion
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Job:
    """A kernel of an image and its launch. `values` are its parameters: an ndarray or bytearray is a buffer with that
    content, and bytes are passed by value. A variable given as bytes is set before the launch; one given as a size is
    read afterwards.
    """

    image: bytes
    kernel: str
    grid: Shape
    block: Shape
    values: tuple[bytearray | bytes, ...]
    shared: int = 0
    cooperative: bool = False
    variables: Mapping[str, bytes | int] = field(default_factory=dict)
    linked: bytes = b""  # PTX to link with the image, which must be PTX, too


Answer = list[bytes] | str  # the buffers and then the variables that were read, or the error


def answers(
    jobs: list[Job],
    library: Path | None = None,
    patience: float = 300,
    before: Sequence[str | Path] = (),
    env: Mapping[str, str] = os.environ,
) -> list[Answer]:
    """Run jobs on the first device of the system's libcuda.so.1, or of the libcuda.so.1 in the folder `library`.

    `patience` is the time limit in seconds for all jobs in one process, `before` a prefix of its command.
    """
    env = dict(env)
    if library:
        env |= {"LD_LIBRARY_PATH": str(library), "GPT_SIM_RUN": "all"}
    found: list[Answer] = []
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "jobs"), Path(folder, "answers")
        given.write_bytes(pickle.dumps(jobs))
        while len(found) < len(jobs):
            made.unlink(missing_ok=True)
            line = [*before, sys.executable, __file__, given, str(len(found)), made]
            streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            try:
                done = subprocess.run(line, env=env, **streams, text=True, timeout=patience, check=False)
                reason = f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
            except subprocess.TimeoutExpired:
                reason = "runs on"
            many = len(found)
            found += _read(made)
            if len(found) < len(jobs) and not (len(found) > many and isinstance(found[-1], str)):
                found.append(reason)
    return found


def _read(path: Path) -> Iterator[Answer]:
    """Yield the answers that a process wrote completely."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return


class _Runner:
    """Runs jobs; loads an image only when it differs from the previous one."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._driver.call("cuCtxSetLimit", 0, ctypes.c_size_t(STACK))
        self._image = b""
        self._module = ctypes.c_void_p()

    def _link(self, job: Job) -> bytes:
        state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        call = self._driver.call
        call("cuLinkCreate_v2", 0, None, None, ctypes.byref(state))
        for ptx in (job.image, job.linked):
            call("cuLinkAddData_v2", state, 1, ptx + b"\0", ctypes.c_size_t(len(ptx) + 1), b"job", 0, None, None)
        call("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(size))
        made = ctypes.string_at(image, size.value)
        call("cuLinkDestroy", state)
        return made

    def run(self, job: Job) -> list[bytes]:
        """Run the job. Raises CudaError, and AssertionError if a guard area was written to."""
        driver = self._driver
        if job.image != self._image or job.variables:
            if self._image:
                driver.call("cuModuleUnload", self._module)
            self._image = b""
            self._module, self._image = driver.load(self._link(job) if job.linked else job.image + b"\0"), job.image
        function = driver.function(self._module, job.kernel)
        if job.shared > 48 << 10:
            driver.call("cuFuncSetAttribute", function, 8, job.shared)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        for name, value in job.variables.items():
            if isinstance(value, bytes):
                driver.write(driver.variable(self._module, name)[0], value)
        parameters: list[object] = []
        buffers = []
        for value in job.values:
            if isinstance(value, bytes):
                parameters.append((ctypes.c_char * len(value)).from_buffer_copy(value))
            else:
                buffers.append((driver.allocate(bytes(value) + STRIP), len(value)))
                parameters.append(buffers[-1][0])
        driver.wait()  # a copy may return before the bytes have arrived
        driver.launch(function, job.grid, job.block, *parameters, shared=job.shared, cooperative=job.cooperative)
        driver.wait()
        found = []
        for memory, size in buffers:
            data = driver.read(memory, size + len(STRIP))
            driver.free(memory)
            assert data[size:] == STRIP, "written out of bounds"
            found.append(data[:size])
        for name, value in job.variables.items():
            if isinstance(value, int):
                found.append(driver.read(driver.variable(self._module, name)[0], value))
        return found


def main(given: str, first: str, made: str) -> None:
    """Run the jobs of a file from a given number on, and stop after the first failure."""
    jobs: list[Job] = pickle.loads(Path(given).read_bytes())
    runner = _Runner()
    with open(made, "wb") as file:
        for job in jobs[int(first) :]:
            try:
                answer: Answer = runner.run(job)
            except (CudaError, AssertionError) as error:
                answer = str(error)
            pickle.dump(answer, file)
            file.flush()
            if isinstance(answer, str):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
