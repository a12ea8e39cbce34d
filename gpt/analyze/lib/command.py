"""Turn an analysis into a command, with its own options and the options that all analyses have.

An analysis is declared at the end of its file, as `ANALYSIS`, and listed in gpt/stages/analyze.py:

    def gaps(trace: TraceModel) -> Answers:
        ...

    ANALYSIS = of_model(gaps, "Show when the GPU had nothing to do.", CALLS)

A function gets the complete traces (gpt/trace/model.py). An analysis of more data than fits in memory is a fold instead
(base.py): a class that the declaration names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from gpt.analyze.lib import base, live
from gpt.analyze.lib.answer import Answers
from gpt.base import cli, signals
from gpt.base.errors import UsageError
from gpt.base.numbers import parse_float, parse_int
from gpt.base.options import Argument, Option
from gpt.base.outputs import check_folder
from gpt.base.wrong_input import is_stream
from gpt.formats.paths import is_regular, open_regular, real_path
from gpt.stream.stage import DASH, Stage
from gpt.trace.inputs import FORMATS, STDIN, find_empty, find_runs

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process
    from gpt.trace.select import Selection

TOOL = "gpt-analyze"
SIDE = ".buffers"  # suffix of the file next to a trace that holds its probes' buffers


class Engine(StrEnum):
    """Engines that can run an analysis outside this process."""

    dask = "dask"


class AnswerFormat(StrEnum):
    """Formats of answers, besides a table and the stream."""

    md = "md"
    csv = "csv"


@dataclass(frozen=True)
class Analysis:
    """An analysis: its line in `--list`, the function or class that implements it, and its own options.

    `make` gets the options by name. If the analysis writes `lines` instead of answers, `make` also gets the stage. A
    fold that holds a file open is a context manager.
    """

    about: str
    make: Callable[..., base.Fold]
    options: Mapping[str, Any] = field(default_factory=dict)
    lines: bool = False
    two: bool = False  # True if it compares two traces
    sends: bool = False  # True if its folds keep rows that workers can send
    picture: bool = False  # True if --plot replaces its tables
    instead: Callable[[Mapping[str, Any]], Analysis | None] | None = None  # may return an analysis to run in its place
    choices: Mapping[str, Any] = field(default_factory=dict)  # the options that `instead` gets

    @property
    def merges(self) -> bool:
        """Return True if parts of the traces can be folded separately and then merged (see base.Fold)."""
        return self.sends or hasattr(self.make, "merge")


def of_model(
    function: Callable[..., Answers],
    about: str,
    kinds: frozenset[str] | None,
    lack: Callable[[set[str]], str | None] | None = None,
    options: Mapping[str, Any] | None = None,
    need: Callable[[TraceModel], str | None] | None = None,
    types: frozenset[str] | None = None,
    drains: bool = False,
    sends: bool = False,
) -> Analysis:
    """Make an analysis from a function that gets a model of the traces.

    - `kinds` are the kinds of records that the model holds; None stands for all.
    - `lack` returns the option that would record kinds that are missing. `need` does the same if the kinds are there,
      but without anything that this analysis uses.
    - Only calls of functions of these `types` are kept, by default all.
    - With `drains`, NVTX ranges are spilled to disk instead of being kept with their processes.
    - With `sends`, the analysis can run on a cluster: workers send the rows that they have read.
    """
    make = partial(_Whole, function, kinds, lack, need, types, drains)
    return Analysis(about, lambda **given: make(options=given), options or {}, sends=sends)


class _Whole:
    """A fold that keeps everything, and calls a function with it at the end."""

    streams = True

    def __init__(
        self,
        function: Callable[..., Answers],
        kinds: frozenset[str] | None,
        lack: Callable[[set[str]], str | None] | None,
        need: Callable[[TraceModel], str | None] | None,
        types: frozenset[str] | None,
        drains: bool,
        options: dict[str, Any],
    ) -> None:
        from gpt.trace.model import EVERYTHING, TraceModel

        self.kinds = EVERYTHING if kinds is None else kinds
        self._function, self._lack, self._options, self._need = function, lack, options, need
        self._model = TraceModel(types, drains)
        self.drains = drains

    def take(self, process: Process) -> None:
        """Keep the rows that a process has collected."""
        self._model.take(process)

    def end(self, process: Process) -> None:
        """Note that a process has ended."""
        self._model.end(process)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return the option that would record the missing input, or None."""
        lack = self._lack(kinds) if self._lack else base.find_lack(kinds, self.kinds)
        return lack or (self._need(self._model) if self._need else None)

    def merge(self, other: _Whole) -> None:
        """Add later traces."""
        self._model.merge(other._model)

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the answers of the function."""
        self._model.incomplete = incomplete
        yield from self._function(self._model, **self._options)


class _Unshown:
    """Stands in for a table, and shows nothing."""

    def add(self, record: dict[str, Any]) -> str | None:
        """Do nothing."""

    def text(self) -> str:
        """Do nothing."""
        return ""


# Options

_HEX = re.compile("0[xX][0-9a-fA-F]+")


def _parse_time(text: str) -> tuple[float, float]:
    begin, comma, end = text.partition(",")
    try:
        times = (
            parse_float(begin) * 1e9 if begin else -math.inf,
            parse_float(end) * 1e9 if end else math.inf,
        )
    except ValueError:
        times = 0.0, 0.0
    if not comma or not times[0] < times[1]:
        raise UsageError(f"--time takes FROM,TO in seconds, not '{text}'")
    return times


def _parse_handle(text: str) -> int:
    try:
        return int(text[2:], 16) if _HEX.fullmatch(text) else parse_int(text)
    except ValueError:
        raise UsageError(f"--cuda-stream takes a handle, as 0x7f..., not '{text}'") from None


def _option(type_: Any, name: str, metavar: str, about: str, **more: Any) -> Any:
    return Annotated[type_, Option(name, metavar=metavar, help=about, **more)]


TRACES = Annotated[list[Path] | None, Argument(metavar="[TRACE]...", help="Standard input by default.")]
FILTERS = {
    "pids": _option(list[int] | None, "--pid", "PID", "Only this process; repeatable."),
    "ranks": _option(list[int] | None, "--rank", "RANK", "Only the process with this rank."),
    "hosts": _option(list[str] | None, "--host", "HOST", "Only processes on this host."),
    "threads": _option(list[int] | None, "--tid", "TID", "Only this thread."),
    "devices": _option(list[int] | None, "--gpu", "NUMBER", "Only this device of the process."),
    "streams": _option(list[str] | None, "--cuda-stream", "HANDLE", "Only this stream."),
    "kernels": _option(list[str] | None, "--kernel", "GLOB", "Only kernels with a matching name."),
    "time": _option(str | None, "--time", "FROM,TO", "Only this range, in seconds since the start."),
}
ANSWERED = {
    "form": Annotated[AnswerFormat | None, Option("--format", help="Write Markdown or CSV.")],
    "plot": _option(Path | None, "--plot", "FILE", "Plot to a .png or .svg file."),
    "as_stream": cli.Stream,
}
COMMON = {
    "engine": Annotated[Engine | None, Option("--engine", help="Read the traces on a Dask cluster.")],
    "scheduler": _option(str | None, "--scheduler", "ADDRESS", "The cluster's address: tcp://HOST:PORT."),
    "follow": Annotated[bool, Option("--follow", "-f", help="Wait until the traces have ended.")],
    "json": cli.Json,
    "from_json": cli.FromJson,
    "verbose": cli.Verbose,
    "version": cli.Version,
}


def _select(given: dict[str, Any]) -> Selection:
    """Return the selection that the options describe."""
    from gpt.trace.select import Selection

    chosen = {name: given[name] for name in FILTERS}
    cli.check_names("--kernel", chosen["kernels"] or ())
    begin, end = _parse_time(chosen["time"]) if chosen["time"] else _parse_time(",")
    sets: dict[str, Any] = {
        name: frozenset(chosen[name] or ()) for name in ("pids", "ranks", "hosts", "threads", "devices")
    }
    streams = frozenset(map(_parse_handle, chosen["streams"] or ()))
    return Selection(**sets, streams=streams, kernels=tuple(chosen["kernels"] or ()), begin=begin, end=end)


def open_stage(form: AnswerFormat | None, as_stream: bool, json: bool, from_json: bool) -> Stage:
    """Open the stage of an analysis that answers, which writes tables by default."""
    if form and (as_stream or json):
        raise UsageError("--format cannot be combined with --stream or --json")
    stage = Stage(TOOL, json=json, from_json=from_json, stream=as_stream, table=not (json or as_stream))
    if stage.table:  # tables only show answers, not the records that pass through
        from gpt.screen.answers import AnswerReport, AnswerTables

        stage.table = AnswerReport(form) if form else AnswerTables()
    return stage


def _check_engine(analysis: Analysis, given: dict[str, Any]) -> None:
    """Raise UsageError if a cluster can't read this input or write this output."""
    if given["scheduler"] and not given["engine"]:
        raise UsageError("--scheduler needs --engine dask")
    if not given["engine"]:
        return
    if not analysis.merges:
        what = "takes all of the traces at once, and is not run on a cluster"
        raise UsageError(f"this analysis {what}: gpt-analyze(1), MANY RANKS, lists the analyses that can be")
    if wrong := [f"--{name.replace('as_', '')}" for name in ("follow", "json", "as_stream") if given.get(name)]:
        raise UsageError(f"--engine dask writes answers only: not with {wrong[0]}")
    if not given["traces"] or STDIN in given["traces"]:
        raise UsageError("--engine dask reads files that all workers see: name them")


def _check_output(traces: Sequence[Path], path: Path | None) -> None:
    """Raise UsageError if the output would replace a trace, even if this run doesn't read that trace."""
    if path is None or not is_regular(path):
        return
    with open_regular(path) as file:
        kept = is_stream(file.peek(64)) or path.suffix == SIDE
    if kept or any(is_regular(trace) and trace.samefile(path) for trace in traces):
        raise UsageError(f"'{path}' is a trace, and not replaced: name another file")


def _expand_sides(traces: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the traces of both sides of a comparison. Raises UsageError, MissingError."""
    if len(traces) != 2:
        raise UsageError("two traces are compared: name two files, before and after, or two folders of such files")
    if len({*map(real_path, traces)}) != 2:
        raise UsageError(f"A and B are the same: {traces[1]}")
    yield from map(find_runs, traces)


def make_command(declared: Analysis) -> Callable[..., int]:
    """Return the command of an analysis, as cli.run() takes it."""

    def command(**given: Any) -> int:
        traces, selection, path = given["traces"] or (), _select(given), given.get("plot")
        analysis = (declared.instead and declared.instead(given)) or declared
        own = {name: given[name] for name in analysis.options}
        _check_engine(analysis, given)
        _check_output(traces, own.get("output") or path)
        if analysis.two:
            sides, own["empty"] = [*_expand_sides(traces)], [[one.name for one in find_empty(side)] for side in traces]
            traces = [trace for side in sides for trace in side]
            own["runs"] = tuple([trace.name for trace in side] for side in sides)

        def look(stage: Stage, seen: Callable[[dict[str, Any]], object] | None = None) -> bool:
            if given["engine"]:
                from gpt.analyze.lib import cluster

                job = cluster.Job(analysis.make, own, given["from_json"], selection, tuple(FORMATS.values()))
                return cluster.read(stage, job, traces, seen, given["scheduler"])
            made = analysis.make(stage, given["json"], **own) if analysis.lines else analysis.make(**own)
            with made if isinstance(made, AbstractContextManager) else nullcontext():
                return base.read(stage, made, traces, selection, seen)

        def peek(stage: Stage) -> bool:
            return look(stage) if shown else base.read(stage, live.Nothing(), traces)

        if analysis.lines:
            stage = Stage(TOOL, from_json=given["from_json"], stream=True)
        else:
            stage = open_stage(given["form"], given["as_stream"], given["json"], given["from_json"])
        if path:
            from gpt.screen import plots

            plots.check(path)
            if analysis.picture and stage.table and not given["form"]:
                stage.table = _Unshown()
        if (place := own.get("output") or path) and place != DASH:
            check_folder(place)
        ended, shown = None, os.isatty(1) and stage.table is not None and not given["form"]
        if given["follow"]:
            live.check(traces)
            ended = live.wait(TOOL, peek, traces, shown)
            stage.write_text(live.CLEAR if shown else "")
        answers: dict[str, dict[str, Any]] = {}
        look(stage, lambda answer: answers.update({answer["name"]: answer}))
        status = stage.close()
        if path and answers:
            plots.draw(path, list(answers.values()))
            if isinstance(stage.table, _Unshown):
                cli.show(path)
        return signals.die(ended.number) if ended else status

    own_options = {**declared.options, **declared.choices}
    options = {"traces": TRACES, **own_options, **FILTERS, **({} if declared.lines else ANSWERED), **COMMON}
    options |= own_options  # replaces a common option of the same name
    command.__doc__ = declared.about
    command.__annotations__ = options
    command.__kwdefaults__ = {name: False if get_args(type_)[0] is bool else None for name, type_ in options.items()}
    return command
