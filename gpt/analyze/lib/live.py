"""Follow traces that are still being written: reread them until their programs have ended.

Each pass reads the traces from the start, and is followed by a pause in proportion to the time it took. On a terminal,
each pass shows its answer. Elsewhere only the last pass writes an answer, because a file with many answers would be
useless. If a signal ends the loop, the answer at that moment is written.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.analyze.lib.answer import Answers, Record
from gpt.base import signals
from gpt.base.errors import MissingError, UsageError
from gpt.stream.stage import Stage

if TYPE_CHECKING:
    from gpt.trace.process import Process

PAUSE, SHARE = 1.0, 4.0  # seconds that a pause takes at least; ratio of a pause to the pass before it
CLEAR = "\x1b[H\x1b[J"  # clears a terminal
FRESH = 5.0  # for this many seconds, a file without a header may be a new trace
_WRITES = re.compile(r"^flags:\t[0-7]*[1256]$", re.M)  # a line of /proc/PID/fdinfo with O_WRONLY or O_RDWR


class Nothing:
    """An analysis that answers nothing. It's used to find out whether traces have ended."""

    kinds = frozenset[str]()
    streams = True

    def take(self, process: Process) -> None:
        """Do nothing."""

    def end(self, process: Process) -> None:
        """Do nothing."""

    def find_lack(self, kinds: set[str]) -> str | None:
        """Do nothing."""

    def answer(self, incomplete: list[str]) -> Answers:
        """Do nothing."""
        yield from ()


def are_written(traces: Mapping[Path, bool]) -> bool:
    """Return True if a process has one of the traces open for writing, or may be about to write to it.

    The values say whether each trace is complete. A trace that changed a moment ago and is incomplete may still be
    arriving, for instance because a tool copies it piece by piece. Only processes that run on this machine, and that we
    may inspect, are found.
    """
    wanted = set()
    for path, complete in traces.items():
        try:
            found = path.stat()
        except (OSError, ValueError):
            continue
        if not complete and abs(time.time() - max(found.st_mtime, found.st_ctime)) < FRESH:
            return True
        wanted.add((found.st_dev, found.st_ino))
    for name in glob.iglob("/proc/[0-9]*/fd/*") if wanted else ():
        try:
            found = os.stat(name)
            flags = Path(name.replace("/fd/", "/fdinfo/"))
            if (found.st_dev, found.st_ino) in wanted and _WRITES.search(flags.read_text()):
                return True
        except OSError:  # closed in the meantime, or owned by another user
            continue
    return False


def is_running(header: Record) -> bool:
    """Return True if the process that wrote this header is still running on this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return header.get("boot_id") == file.read().strip() and Path(f"/proc/{header['pid']}").exists()


def check(traces: Sequence[Path]) -> None:
    """Raise UsageError if no files are named, MissingError if one doesn't exist."""
    if not traces or Path("-") in traces:
        raise UsageError("--follow takes files; a stream is read to its end anyway")
    for path in traces:
        if not path.exists():
            raise MissingError("No such file or directory", str(path))


def wait(tool: str, look: Callable[[Stage], bool], traces: Sequence[Path], shown: bool) -> signals.Terminated | None:
    """Call `look` once per pass until it reports that everything has ended, or until a signal arrives. Return the
    signal, or None.

    If `shown`, each pass shows its answer on the terminal. Raises MissingError if a trace has disappeared.
    """
    from gpt.screen.answers import AnswerTables

    try:
        while True:
            began, stage = time.monotonic(), Stage(tool, stream=True, quiet=True)
            stage.table = AnswerTables()
            ended = look(stage)
            if shown:
                stage.write_text(CLEAR)
                stage.close()
            if ended:
                return None
            time.sleep(max(PAUSE, SHARE * (time.monotonic() - began)))
            check(traces)
    except signals.Terminated as signal:
        return signal
