"""Run analyses on a Dask cluster: each worker reads a file, and the results are merged here.

A worker runs the same fold over its file as a run without a cluster would, and returns the fold with its warnings.
Folds are merged in the order in which a single process would have read the files: first those on the command line, then
their children's traces, each file once. So the answer is the same, except that sums of fractions may differ in the last
digit.

A process that appears in several files counts once. A worker doesn't know what other files contain; if such a process
turns up, its file is read again, with a list of the processes that were found elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gpt
from gpt.analyze.lib import base
from gpt.base.errors import GptError, MissingError, UsageError
from gpt.base.install import missing_package
from gpt.base.outputs import is_user
from gpt.base.scratch import scratch_folder
from gpt.stream.stage import Stage

if TYPE_CHECKING:
    from gpt.analyze.lib.answer import Record
    from gpt.trace.follow import Trace
    from gpt.trace.inputs import Format
    from gpt.trace.select import Selection

TOOL = "gpt-analyze"
SECONDS = 10  # how long a scheduler may take to answer
IDLE = 3  # give up after this many times SECONDS without a worker
LOGGERS = ("distributed", "distributed.client")  # loggers whose levels Dask sets itself


class Job(NamedTuple):
    """The task of a worker that reads a file: the function that makes the fold, its options, and the formats that the
    input may have.
    """

    make: Callable[..., base.Fold]
    options: dict[str, Any]
    from_json: bool
    selection: Selection | None
    formats: tuple[Format, ...]


class WorkerResult(NamedTuple):
    """A trace as read by a worker, and the messages about it."""

    trace: Trace
    passage: base.Passage
    said: list[tuple[str, tuple[Any, ...]]]  # the stage's methods to call, and their arguments


class _Worker(Stage):
    """A stage that collects its messages, and writes nothing."""

    def __init__(self, from_json: bool) -> None:
        super().__init__(TOOL, from_json=from_json, stream=True, quiet=True)
        self.said: list[tuple[str, tuple[Any, ...]]] = []

    def warn(self, where: str, fact: str, ref: str | None = None) -> Record:
        self.said.append(("warn", (where, fact, ref)))
        return super().warn(where, fact, ref)

    def error(self, error: GptError, ref: str | None = None, once: bool = False) -> Record:
        self.said.append(("error", (error, ref)))
        return super().error(error, ref, once)

    def write(self, record: Any) -> None:
        pass


def _read_with(stage: Stage) -> Callable[[Path | None], Iterator[Record]]:
    from gpt.trace.inputs import read_input

    return lambda path: read_input(path, lambda one: stage.read([one] if one else ()))


def read_part(job: Job, path: Path, origin: int, known: Mapping[Hashable, str] | None = None) -> WorkerResult:
    """Read a trace on a worker, without following the traces of child processes that it names.

    `known` are the processes found in other traces; they don't count here.
    """
    from gpt.trace.follow import Trace
    from gpt.trace.inputs import register

    register(*job.formats)
    stage = _Worker(job.from_json)
    passage = base.Passage(stage, job.make(**job.options), job.selection, known=known)
    trace = Trace(path, True, _read_with(stage), origin)
    base.read_trace(stage, passage, trace)
    return WorkerResult(trace, passage, stage.said)


def read(
    stage: Stage, job: Job, traces: Sequence[Path], seen: Callable[[Record], object] | None, address: str | None
) -> bool:
    """Do the work of `base.read` on a cluster: at this address, from Dask's configuration, or local.

    Raises GptError if a worker fails, and MissingError without Dask or a cluster that answers.
    """
    from gpt.trace.follow import Follow
    from gpt.trace.inputs import expand

    inputs, read_one = expand(traces), _read_with(stage)
    if job.selection and job.selection.timed:
        job.selection.look(filter(None, inputs), read_one)
    passage = base.Passage(stage, job.make(**job.options), job.selection, seen)
    followed = Follow(inputs, read_one)
    with _connect(address) as submit:
        waiting = deque(
            (trace, submit(job, trace.path, trace.origin)) for trace in filter(followed.is_new, followed.traces)
        )
        while waiting:
            trace, result = waiting.popleft()
            part = result()
            told = part.passage.known
            again = {key: name for key, name in passage.known.items() if told.get(key, name) != name}
            if again:
                part = submit(job, trace.path, trace.origin, again)()
            for method, said in part.said:
                getattr(stage, method)(*said)
            passage.merge(part.passage)
            found = filter(followed.is_new, followed.children(part.trace))
            waiting += [(child, submit(job, child.path, child.origin)) for child in found]
    passage.finish([path for _, path in followed.absent])
    return passage.ended


@contextmanager
def _connect(address: str | None) -> Iterator[Callable[..., Callable[[], WorkerResult]]]:
    """Yield a function that submits `read_part` to a worker, and returns a function that waits for the result."""
    _check_settings()
    try:
        import dask
        import distributed
    except ImportError:
        raise missing_package("distributed") from None
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    address = address or dask.config.get("scheduler-address", None)
    with ExitStack() as opened:
        where = address or _start(dask, distributed, opened)
        client = _open(distributed, where)
        opened.callback(client.close)

        def submit(*args: Any) -> Callable[[], WorkerResult]:
            future = client.submit(read_part, *args, pure=False)
            return lambda: _wait(distributed, client, future)

        yield submit


def _check_settings() -> None:
    """Raise UsageError if another user could have written Dask's settings, which can make it run any code. If we're
    root, HOME may be that user's.
    """
    folder = Path("~/.config/dask").expanduser()
    for place in (folder, *folder.parents) if folder.exists() else ():
        found = place.stat()
        if not is_user(found.st_uid, 0, os.geteuid()) or found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise UsageError(f"another user can change Dask's settings in {folder}: set HOME to your own", str(place))


def _start(dask: Any, distributed: Any, opened: ExitStack) -> Any:
    """Start a local cluster with one process per core. Our main file is hidden, because the workers would run it again.

    Dask looks for modules in the folder of its temporary files. By default it's in /tmp, and another user may have made
    it.
    """
    parent = dask.config.get("temporary-directory", None)
    scratch = opened.enter_context(scratch_folder("gpt-dask-", Path(parent) if parent else None))
    opened.enter_context(dask.config.set({"temporary-directory": str(scratch.path)}))
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # a signal may leave semaphores behind
    main = sys.modules["__main__"].__dict__
    name = main.pop("__file__", None)
    try:
        count = len(os.sched_getaffinity(0))
        cluster = distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
        )
    finally:
        if name is not None:
            main["__file__"] = name
    opened.callback(cluster.close)
    return cluster


def _open(distributed: Any, where: Any) -> Any:
    """Return a client of a cluster, after checking that its workers run the same version of this package."""
    name = where if isinstance(where, str) else "the cluster of this machine"
    if isinstance(where, str):
        _check_scheduler(distributed, where)
    client = distributed.Client(where, timeout=SECONDS, set_as_default=False)
    try:
        client.wait_for_workers(1, timeout=SECONDS)
        versions = client.run(_version)
    except TimeoutError:
        raise MissingError("the scheduler has no workers", name) from None
    except Exception as error:  # raised by a worker, or text if it can't be sent
        raise MissingError(f"workers need this version of gpt: {_first_line(error)}", name) from None
    if wrong := {version for version in versions.values() if version != gpt.__version__}:
        raise MissingError(f"workers have version {', '.join(sorted(wrong))} of gpt, not {gpt.__version__}", name)
    return client


def _check_scheduler(distributed: Any, address: str) -> None:
    """Raise MissingError unless a scheduler answers: a client would retry for a while, and log each failure."""

    async def look() -> None:
        arguments = distributed.Security().get_connection_args("client")
        await (await distributed.comm.connect(address, timeout=SECONDS, **arguments)).close()

    try:
        asyncio.run(look())
    except Exception as error:  # another service may answer anything, such as a length of exabytes
        raise MissingError(f"no Dask scheduler: {_first_line(error)}", address) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _version() -> str:
    return gpt.__version__


def _wait(distributed: Any, client: Any, future: Any) -> WorkerResult:
    """Wait for the result. Raises GptError if no worker is left, because Dask would wait forever."""
    idle = 0
    try:
        while True:
            try:
                part: WorkerResult = future.result(timeout=SECONDS)
                return part
            except TimeoutError:
                if future.done():
                    raise
            idle = 0 if _has_workers(client) else idle + 1
            if idle == IDLE:
                raise GptError("the cluster's scheduler has no workers left")
    except distributed.KilledWorker as error:
        raise GptError(f"workers of the cluster were killed by the task: {_first_line(error)}") from None
    except distributed.CancelledError:
        raise GptError("the scheduler of the cluster is gone") from None
    finally:
        future.release()


def _has_workers(client: Any) -> bool:
    try:
        return bool(client.nthreads())
    except Exception:  # without a scheduler, futures are cancelled after a while
        return True
