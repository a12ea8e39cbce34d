"""Parse `event.log`: the kernels that a program launched with probes, and their results.

The log is untrusted, and lines of several threads may be mixed. So each line is taken to describe the launch before
it, and lines of unknown form are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

MOST_LINE = 1 << 16  # bytes
MOST = 1 << 62  # largest number
FAILED = "Neutrino could not probe it"


@dataclass
class LoggedLaunch:
    """A probed launch. `result` is the name of its file; times are in ns."""

    function: str
    start: int
    grid: tuple[int, ...] = (1, 1, 1)
    block: tuple[int, ...] = (1, 1, 1)
    shared: int = 0
    result: str | None = None
    needs: int | None = None
    lost: str | None = None
    dropped: dict[str, int] = field(default_factory=dict)  # records that did not fit, by map
    times: dict[str, int] = field(default_factory=dict)


class Log:
    """The contents of a log. `names` of kernels and `folders` below kernel/ are by the pointer of the function."""

    def __init__(self) -> None:
        self.pid = 0
        self.argv: list[str] = []
        self.names: dict[str, str] = {}
        self.folders: dict[str, str] = {}
        self.launches: list[LoggedLaunch] = []
        self.unprobed = Counter[tuple[str, str]]()  # by pointer or name, and by reason
        self.calls = Counter[str]()  # by function
        self._function = ""

    @property
    def _last(self) -> LoggedLaunch:
        return self.launches[-1] if self.launches else LoggedLaunch("", 0)

    def add(self, line: str) -> None:
        """Take in a line."""
        for rule, take in _RULES.get(line.partition(" ")[0], ()):
            if match := rule.fullmatch(line):
                take(self, match)
                return

    def _begin(self, match: re.Match[str]) -> None:
        self.launches.append(LoggedLaunch(self._function, _whole(match["ns"])))

    def _shape(self, match: re.Match[str]) -> None:
        last = self._last
        last.grid, last.block = (tuple(max(1, _whole(n)) for n in match[of].split()) for of in ("grid", "block"))
        last.shared = _whole(match["shared"])

    def _find(self, match: re.Match[str]) -> None:
        self._function = match["function"]
        if match["how"] == "fail":
            self.unprobed[match["function"], FAILED] += 1

    def _compile(self, match: re.Match[str]) -> None:
        self._function = match["function"]
        self.names[match["function"]] = match["name"]

    def _rename(self, match: re.Match[str]) -> None:
        self.folders[self._function] = match["folder"]

    def _needs(self, match: re.Match[str]) -> None:
        if self.launches and self._last.needs is None:
            self._last.needs = _whole(match["size"])
        else:  # in a run that only adds up (--memusage)
            self.launches.append(LoggedLaunch(self._function, 0, needs=_whole(match["size"])))

    def _save(self, match: re.Match[str]) -> None:
        self._last.result = match["path"].rpartition("/")[2]

    def _lose(self, match: re.Match[str]) -> None:
        self._last.lost = match["fact"]

    def _drop(self, match: re.Match[str]) -> None:
        self._last.dropped[match["map"]] = _whole(match["count"])

    def _time(self, match: re.Match[str]) -> None:
        found = match.groupdict()
        self._last.times = {name: max(0, round(float(value) * 1e6)) for name, value in found.items() if value}

    def _back_up(self, match: re.Match[str]) -> None:
        self.unprobed[match["name"], match["reason"]] += _whole(match["launches"])

    def _call(self, match: re.Match[str]) -> None:
        self.calls[match["name"]] += 1

    def _tell(self, match: re.Match[str]) -> None:
        if match["tag"] == "pid":
            self.pid = _whole(match["text"])
        else:
            self.argv = match["text"].partition(" ")[2].split(" ")


def _whole(text: str) -> int:
    return min(int(text), MOST)


_N = r"\d{1,20}"
_MS = r"-?\d{1,15}(?:\.\d{1,9})?"
_THREE = rf"{_N} {_N} {_N}"
_TIMES = rf"prologue (?P<prologue>{_MS}) kernel (?P<kernel>{_MS}) epilogue (?P<epilogue>{_MS})"
_FORMS: dict[str, tuple[tuple[str, Callable[[Log, re.Match[str]], None]], ...]] = {
    "[pid]": ((rf"\[(?P<tag>pid)\] (?P<text>{_N})", Log._tell),),
    "[cmd]": ((r"\[(?P<tag>cmd)\] (?P<text>.*?) ?", Log._tell),),
    "[mem]": ((rf"\[mem\] (?P<name>cu\w+) {_N} .*", Log._call),),
    "[jit]": (
        (r"\[jit\] find (?P<function>\S+) name (?P<name>.+) bin \S+ size \d+", Log._compile),
        (r"\[jit\] rename .+ (?P<folder>\w+)", Log._rename),
    ),
    "[exec]": (
        (r"\[exec\] funcmap-(?P<how>not-find) (?P<function>\S+)", Log._find),
        (r"\[exec\] funcmap-find (?P<function>\S+) (?P<how>\w+)", Log._find),
        (rf"\[exec\] (?P<ns>{_N}) param.*", Log._begin),
        (rf"\[exec\] grid (?P<grid>{_THREE}) block (?P<block>{_THREE}) shared (?P<shared>{_N})", Log._shape),
        (rf"\[exec\] probe-mem (?P<size>{_N}) \(bytes\)", Log._needs),
        (rf"\[exec\] save (?P<path>.+) size {_N}", Log._save),
        (rf"\[exec\] {_TIMES} ratio .*", Log._time),
        (rf"\[exec\] backup (?P<launches>{_N}) (?P<reason>.+) (?P<name>\S+)", Log._back_up),
        (rf"\[exec\] dropped (?P<map>.+): (?P<count>{_N}) records .*", Log._drop),
        (r"\[exec\] lost(?: .*?)?: (?P<fact>.+)", Log._lose),
        (r"\[exec\] (?P<fact>failed .+)", Log._lose),
    ),
    "[benchmark]": ((rf"\[benchmark\] {_TIMES} original (?P<original>{_MS}) .*", Log._time),),
}
_RULES = {tag: [(re.compile(form, re.ASCII), take) for form, take in forms] for tag, forms in _FORMS.items()}


def read_log(file: IO[bytes]) -> Log:
    """Read a log to its end, even if it's truncated."""
    log = Log()
    for line in iter_lines(file):
        log.add(line)
    return log


def iter_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file that aren't too long."""
    whole = True
    for line in _iter_parts(file):
        ended = line.endswith(b"\n")
        if whole and (ended or len(line) < MOST_LINE):
            yield line.rstrip(b"\n").decode(errors="surrogateescape")
        whole = ended


def _iter_parts(file: IO[bytes]) -> Iterable[bytes]:
    while line := file.readline(MOST_LINE):
        yield line
