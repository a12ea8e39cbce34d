"""Samples of what host threads were doing (`gpt-hook run --sample-host`)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Times = Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]]

NONE = (1 << 64) - 1
# `python` and `native` are ids of stacks in the `sites` of the process, or 0. `syscall` is NONE if the thread was
# running.
SAMPLE = [("at", "<i8"), ("thread", "<u8"), ("python", "<u8"), ("native", "<u8"), ("syscall", "<u8"), ("changed", "?")]
SYSCALLS = {  # system calls in which threads wait, by their numbers on x86-64
    0: "read", 1: "write", 3: "close", 7: "poll", 9: "mmap", 11: "munmap", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 28: "madvise", 34: "pause", 35: "nanosleep",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4",
    74: "fsync", 75: "fdatasync", 128: "rt_sigtimedwait", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
    247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    288: "accept4", 295: "preadv", 299: "recvmmsg", 426: "io_uring_enter", 441: "epoll_pwait2",
}  # fmt: skip


def name_syscall(number: int) -> str:
    """Return the name of a system call. If it isn't one of those in which threads usually wait, return its number."""
    return SYSCALLS.get(number, f"system call {number}")


class Samples:
    """The samples of a process."""

    def __init__(self) -> None:
        self._values = array("Q")

    def __len__(self) -> int:
        return len(self._values) // len(SAMPLE)

    def add(self, record: dict[str, Any]) -> None:
        """Add a checked `sample` record."""
        self._values.extend((
            record["at"], record["thread"], record.get("python", 0), record.get("native", 0),
            record.get("syscall", NONE), record.get("changed", 0) != 0,
        ))  # fmt: skip

    def table(self, times: Times) -> npt.NDArray[np.void]:
        """Return all samples as rows of SAMPLE, sorted by thread and time. `times` converts their time stamps."""
        values = np.array(self._values, np.uint64).reshape(-1, len(SAMPLE))
        rows = np.zeros(len(values), SAMPLE)
        for column, (name, _) in enumerate(SAMPLE):
            rows[name] = values[:, column] if column else times(values[:, 0])
        return rows[np.lexsort((rows["at"], rows["thread"]))]
