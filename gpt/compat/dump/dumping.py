"""Pass a stream through, and write a file for each launch in it, to run callbacks on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.compat.dump.callbacks import Callbacks
from gpt.stream.stage import Stage
from gpt.trace.complete_launches import CompleteLaunches, WholeLaunch

Record = dict[str, Any]


class Dumping(Stage):
    """Writes the launches of a stream to files in `folder`, runs callbacks on them, and passes the stream on."""

    def follow(
        self, folder: Path, private: Path, keep: bool, limit: float, printed: int, only: Sequence[str] | None
    ) -> None:
        """Set options. `private` is a folder for temporary files, and `printed` is the descriptor for the output of
        callbacks.

        `only` are the callbacks that may run; None allows all that the stream names.
        """
        self._folder, self._place = folder, os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self._keep = keep
        self._callbacks = Callbacks(limit, printed, keep)
        self._only = None if only is None else frozenset(only)
        self._refused: set[str] = set()
        self._launches = CompleteLaunches(private)
        self._follows = True
        self._diags: list[Record] = []
        self._headers: dict[int, list[Record]] = {}  # headers of the launches that were dumped, by pid
        self._inside = False  # True inside a segment

    def run(self, files: list[Path], wants: tuple[str, str] | None) -> int:
        """Read the stream, and wait for the callbacks."""
        torn: GptError | None = None
        status = 0
        try:
            try:
                status = self.filter(self._handle, files, self._settle, wants=wants)
            except GptError as error:  # the records before it are complete
                torn = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # close our output: its reader has got the whole stream
            self._callbacks.finish()
        finally:
            self._callbacks.stop()
        for _ in self._settle():
            pass
        for callback, count in self._callbacks.failed.items():
            if count > 1:
                self.warn(callback, f"failed on {count:,} launches")
        if pending := self._launches.pending:
            self.warn("", f"launches not dumped, because the stream lacks some of their data: {pending:,}")
        if torn:
            raise torn
        return max(status, int(bool(self._callbacks.failed)))

    def read(self, files: Sequence[Path] = ()) -> Iterator[Record]:
        """Yield the records. The launches that a record completes are written to files before it's yielded."""
        for record in super().read(files):
            try:
                for launch in self._launches.add(record) if self._follows else ():
                    callbacks = self._choose(launch.callbacks)
                    if self._keep or callbacks:
                        self._dump(launch, callbacks)
                    launch.close()
            except MalformedError as error:
                self._follows = False
                self._note(error.where, f"{error.fact}; no more launches are dumped")
            yield record

    def _handle(self, record: Record) -> tuple[Record]:
        self._inside = record["kind"] != "end"
        return (record,)

    def _settle(self) -> Iterator[Record]:
        """Report errors that have occurred since the last call."""
        while self._callbacks.faults:
            self._note(*self._callbacks.faults.popleft())
        if self._inside:
            found, self._diags = self._diags, []
            yield from found

    def _note(self, where: str, fact: str) -> None:
        self._diags.append(self.warn(where, fact))

    def _name(self, launch: WholeLaunch) -> str:
        """Return the pid of a launch's process, or PID.2 if it's the second process with that pid."""
        known, header = self._headers.setdefault(launch.pid, []), launch.around[0]
        if not any(one is header for one in known):
            known.append(header)
        number = next(n for n, one in enumerate(known, 1) if one is header)
        return f"{launch.pid}.{number}" if number > 1 else str(launch.pid)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o600, dir_fd=self._place)

    def _choose(self, callbacks: list[str]) -> list[str]:
        """Return the callbacks that may run. Report each of the others once."""
        if self._only is None:
            return callbacks
        for callback in callbacks:
            if callback not in self._only and callback not in self._refused:
                self._refused.add(callback)
                self._note(callback, "not a callback of this run; it is not run")
        return [callback for callback in callbacks if callback in self._only]

    def _dump(self, launch: WholeLaunch, callbacks: list[str]) -> None:
        path = self._folder / f"{self._name(launch)}-{launch.id}.mp"
        fault = launch.fault
        try:
            if not fault:
                with open(path.name, "xb", opener=self._open) as file:
                    launch.write(file)
        except OSError as error:
            fault = error.strerror or str(error)
            if not isinstance(error, FileExistsError):
                with suppress(OSError):
                    os.unlink(path.name, dir_fd=self._place)
        if fault:
            self._note(str(self._folder), f"{fault}: launches are not dumped")
            return
        self.flush()  # callbacks may delay the stream
        self._callbacks.add(path, callbacks)
