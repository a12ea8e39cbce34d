"""Name hosts, ranks and GPUs in tables of several processes.

Pids aren't unique across hosts. If traces come from several hosts, tables also show the host, and the rank if the
process had one in its environment.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Column
from gpt.trace.machines import machine_of

if TYPE_CHECKING:
    from gpt.trace.machines import Header
    from gpt.trace.process import Process

WHO = (  # columns that identify a process
    Column("host", "text?", shown="any"),
    Column("rank", "u64?", "id", shown="any"),
    Column("pid", "u64?", "id"),
)
PROGRAM = (Column("program", "text", title="process"), Column("command", "text", shown="line"))
SINCE = "counts from the beginning of the first process"  # used in tables with points in time
Who = tuple[str | None, int | None, int]
BOOT = 8  # digits of the boot id, if two machines have the same name


def tell_apart(headers: Iterable[Header]) -> list[Who]:
    """Return values for the columns WHO of each process. They name the host only if there are several hosts."""
    found = list(headers)
    machines = {machine_of(header) if header.get("boot_id") else header["host"]: header["host"] for header in found}
    names = list(machines.values())

    def host(header: Header) -> str | None:
        if len(machines) < 2:
            return None
        name: str = header["host"]
        return f"{name} {header['boot_id'][:BOOT]}" if names.count(name) > 1 and header.get("boot_id") else name

    return [(host(header), header.get("rank"), header["pid"]) for header in found]


def name_program(header: Header) -> tuple[str, str]:
    """Return values for the columns PROGRAM: a short name, which is the script's if Python runs one, and the whole
    command.
    """
    argv: list[str] = header["argv"]
    names = [os.path.basename(one) for one in argv] or [""]
    scripts = [name for name in names if name.endswith(".py")] if names[0].startswith("python") else []
    return (scripts or names)[0], shlex.join(argv)


def describe(who: Who) -> str:
    """Name a process in a sentence."""
    host, rank, pid = who
    return (f"rank {rank}, " if rank is not None else "") + f"process {pid}" + (f" of {host}" if host else "")


class Gpus:
    """Numbers the GPUs of processes, starting at 0, in the order in which they're asked for. GPUs are identified by
    UUID if it's known.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, process: Process, ordinal: int | None) -> int:
        """Return the number of the GPU with this ordinal in a process; None stands for a device that isn't known."""
        return self._numbers.setdefault(process.gpu(ordinal), len(self._numbers))
