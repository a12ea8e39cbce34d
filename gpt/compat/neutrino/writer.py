"""Read gpt-neutrino's live stream, and write a trace folder for each process and the analyses of results.

Its task is in the environment (command.py). When the stream and the analyses have ended, it prints a line for each
process on standard error. It exits with 1 if a folder is incomplete.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.base import cli, messages, signals
from gpt.base.cache import make_private
from gpt.base.errors import GptError, MalformedError
from gpt.compat.dump.callbacks import Callbacks
from gpt.compat.neutrino.folder import TraceFolder
from gpt.compat.neutrino.keeper import CODE
from gpt.compat.neutrino.kernels import Settings
from gpt.probe.read.load import load_probes
from gpt.screen.units import amount, kept_share
from gpt.stream import wire
from gpt.stream.wire import Segments
from gpt.trace.complete_launches import CompleteLaunches

TOOL = "gpt-neutrino"
VARIABLE = "GPT_NEUTRINO"  # the options of the run, as JSON
NAMED = 5  # kernels that a message lists
PATIENCE = 24 * 3600.0  # time limit for an analysis

Record = dict[str, Any]


class Writer:
    """Write the trace folders of one run."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._kept = Path(asked["kept"])
        given = asked["kernels"], asked["filter"], asked["hook"], asked["sizes"], self._kept, asked["benchmark"]
        self._settings = Settings(*given, asked["second"])
        self._probe = _read_probe(Path(asked["probe"]))
        self._folders: dict[int, TraceFolder] = {}  # by segment
        self._callbacks = Callbacks(PATIENCE, 1, True, asked["python"])
        self._names: dict[str, None] = {}  # kernels that were looked up

    def run(self, found: Iterable[Record]) -> int:
        """Take in the records of the stream, and return the exit status."""
        torn: GptError | None = None
        whole = False
        try:
            try:
                self._read(found, CompleteLaunches(Path(tempfile.gettempdir())))
            except GptError as error:
                torn = error
            whole = True
            self._finish()
            self._callbacks.finish()
        except signals.Terminated:  # everything received so far has its line
            self._finish()
            missing = [] if whole else ["trace folders are not complete"]
            missing += [f"{left:,} results are not analyzed"] if (left := self._callbacks.left) else []
            messages.say(TOOL, "warning", "", "; ".join(["interrupted", *missing]))
            self._report(torn)
            raise
        finally:
            self._callbacks.stop()
            with suppress(OSError):  # if others could rename the folder, nothing was kept
                make_private(self._kept / CODE)
                shutil.rmtree(self._kept)
        return self._report(torn)

    def _finish(self) -> None:
        for folder in self._folders.values():
            folder.finish()

    def _read(self, found: Iterable[Record], launches: CompleteLaunches) -> None:
        segments = Segments()
        for record in found:
            number = segments.add(record)
            if record["kind"] == "header":
                self._folders[number] = self._make(record)
            if record["kind"] == "function":
                self._names[record["name"]] = None
            folder = self._folders[number]
            for one in self._folders.values() if record["kind"] == "sync" else (folder,):
                one.add(record)
            if not self._asked["benchmark"]:
                for launch in launches.add(record):
                    folder.add_launch(launch)
                    launch.close()

    def _make(self, header: Record) -> TraceFolder:
        todo = self._settings, self._command, self._analyze
        return TraceFolder(header, self._asked["parent"], self._probe, *todo)

    def _analyze(self, path: Path) -> None:
        self._callbacks.add(path, [self._asked["hook_path"]])

    def _command(self, path: Path) -> str | None:
        hook = self._asked["hook_path"]
        if not hook:
            return None
        return shlex.join([*([self._asked["python"]] if hook.endswith(".py") else []), hook, str(path)])

    def _report(self, torn: GptError | None) -> int:
        status = 0
        if torn:
            messages.say(TOOL, "error", torn.where, f"{torn.fact}; trace folders are not complete")
            status = torn.status
        for (hook, fault), count in self._failed():
            messages.say(TOOL, "warning", hook, fault + (f" (failed on {count:,} launches)" if count > 1 else ""))
        there = [folder for folder in self._folders.values() if folder.path or folder.fault]
        for folder in there:
            if folder.fault:
                messages.say(TOOL, "error", str(folder.path or self._asked["parent"]), f"{folder.fault}; not complete")
                status = max(status, GptError.status)
        for name, log in sum_logs(there).items():
            if log["dropped"]:
                which = f"{log['full']:,} of {amount(log['launches'], 'launch')}"
                messages.say(TOOL, "warning", name, f"{kept_share(log['kept'], log['dropped'])}: the log of {which} "
                             "was too small; later launches of the same kernel get a larger one, if there's "
                             "device memory for it")  # fmt: skip
        for fact in find_unused(self._asked["kernels"], self._asked["filter"], list(self._names)):
            messages.say(TOOL, "warning", "", fact)
        if not there:
            messages.say(TOOL, "warning", "", "no process used the CUDA driver: no trace folder")
        for folder in there:
            if folder.path:
                messages.write(f"[info] trace in {os.path.join(self._asked['parent'], folder.path.name)}\n")
        return status

    def _failed(self) -> Iterator[tuple[tuple[str, str], int]]:
        for fault in self._callbacks.faults:
            yield fault, self._callbacks.failed[fault[0]]


def sum_logs(folders: Iterable[TraceFolder]) -> dict[str, Counter[str]]:
    """Add up what the logs of all processes kept and dropped, by map."""
    found: dict[str, Counter[str]] = {}
    for folder in folders:
        for name, log in folder.logs.items():
            found.setdefault(name, Counter()).update(log)
    return found


def find_unused(kernels: str, filter_: str, names: Sequence[str]) -> Iterator[str]:
    """Report which strings of -k are in no kernel name, and whether --filter leaves no kernel, as
    runtime/hook/write/selection.c does.
    """
    parts = _parts(kernels)
    chosen = [name for name in names if not parts or any(part in name for part in parts)]
    if names and (unused := [part for part in parts if not any(part in name for name in names)]):
        yield f"-k {':'.join(unused)} matches no kernel; the program looked up: {_list(names)}"
    if chosen and all(any(part in name for part in _parts(filter_)) for name in chosen):
        yield f"--filter leaves no kernel; it drops: {_list(chosen)}"


def _parts(text: str) -> list[str]:
    return [part for part in (text or "").split(":") if part]


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _read_probe(path: Path) -> dict[str, bytes]:
    """Return the probe as probe.toml, and a Python probe's source next to it."""
    loaded = load_probes(path)
    if path.suffix != ".py":
        return {"probe.toml": loaded.source.encode()}
    from gpt.probe.read.show import to_toml

    return {"probe.py": loaded.source.encode(), "probe.toml": to_toml(loaded).encode()}


def write() -> int:
    """Write folders as the environment says."""
    try:
        asked = json.loads(os.environ[VARIABLE])
    except (KeyError, ValueError):
        raise MalformedError("not created by gpt-neutrino", VARIABLE) from None
    with open(0, "rb", closefd=False) as file:
        return Writer(asked).run(wire.read_records(file, "<stdin>"))


if __name__ == "__main__":
    sys.exit(cli.run(TOOL, write))
