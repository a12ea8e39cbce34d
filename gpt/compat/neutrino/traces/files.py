"""The files of a trace folder, each read on demand.

A result may have been named on another machine, so only its file name counts, and it's looked up in this folder. Files
and folders that are links aren't opened. Missing or malformed files are ignored, except results, for which the reason
is kept.
"""

from __future__ import annotations

import re
import stat
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import GptError, MissingError
from gpt.compat.neutrino.traces.log import Log, read_log
from gpt.compat.neutrino.traces.results import Result, parse_result
from gpt.formats.paths import open_regular, read_at_most

SMALL, MOST_REPORT = 1 << 16, 4 << 20  # bytes of a kernel.info, of a process.log
MOST_PROBES = 64
REGISTERS = re.compile(rb"Used (\d{1,6}) registers")


class KernelInfo(NamedTuple):
    """A `kernel.info`: the name, and for each probe that saves its level (0 thread, 1 warp, 2 block) and bytes."""

    name: str
    probes: list[tuple[int, int]]


class FolderFiles:
    """A trace folder, or with `only`, one of its results."""

    def __init__(self, path: Path, only: str | None) -> None:
        self.path = path
        self._only = only
        self._infos: dict[str, KernelInfo | None] = {}

    @cached_property
    def log(self) -> Log:
        """The contents of the log; empty without one."""
        try:
            with open_regular(self.path / "event.log", follow=False) as file:
                return read_log(file)
        except FileNotFoundError:
            return Log()

    @cached_property
    def results(self) -> Path:
        """The folder of results. Raises MissingError."""
        folder = self.path / "result"
        return self.path if self._only and not folder.exists() else self._inside("result")

    def list_results(self) -> list[str]:
        """Return the names of the results, oldest first."""
        if self._only:
            return [self._only]
        try:
            names = [path.name for path in self.results.iterdir() if path.suffix == ".bin"]
        except FileNotFoundError:
            return []
        return sorted(names, key=lambda name: (len(name.partition(".")[0]), name))

    def read_head(self, name: str) -> Result | str:
        """Return the header of a result, or the reason if it can't be read."""
        try:
            with open_regular(self.results / name, follow=False) as file:
                return parse_result(file)
        except GptError as error:
            return f"{name}: {error.fact}"
        except OSError as error:
            return f"{name}: {error.strerror}"

    def read_info(self, function: str) -> KernelInfo | None:
        """Return the `kernel.info` of a function; for an unknown function, the only kernel's."""
        name = self.log.folders.get(function) or (None if function else self._only_kernel)
        if name is None:
            return None
        if name not in self._infos:
            self._infos[name] = self._read_info(name)
        return self._infos[name]

    @cached_property
    def _only_kernel(self) -> str | None:
        try:
            found = [path.name for path in self._inside("kernel").iterdir()]
        except (OSError, MissingError):
            return None
        return found[0] if len(found) == 1 else None

    def _read_info(self, name: str) -> KernelInfo | None:
        try:
            lines = self._read(name, "kernel.info", SMALL).decode(errors="surrogateescape").split("\n")
            count = min(int(lines[2]), MOST_PROBES)
            probes = [(int(level), int(size)) for level, size in (line.split(",") for line in lines[3 : 3 + count])]
        except (OSError, MissingError, ValueError, IndexError):
            return None
        return KernelInfo(lines[0], probes)

    def find_registers(self, function: str) -> dict[str, int]:
        """Return the registers per thread without and with probes; ptxas reported them in this order."""
        try:
            found = REGISTERS.findall(self._read(self.log.folders.get(function, ""), "process.log", MOST_REPORT))
        except (OSError, MissingError):
            return {}
        return {"registers": int(found[-1]), "registers_before": int(found[-2])} if len(found) > 1 else {}

    def _read(self, kernel: str, name: str, most: int) -> bytes:
        self._inside("kernel")
        with open_regular(self._inside(f"kernel/{kernel}") / name, follow=False) as file:
            return read_at_most(file, most)

    def _inside(self, name: str) -> Path:
        """Return the path of a folder inside the trace folder. Raises MissingError if it isn't a folder."""
        path = self.path / name
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise MissingError("not a folder", str(path))
        return path
