"""Run tests in several processes: `pytest --workers 3`.

Workers of pytest-xdist import and collect all tests, each of them, in 7 s of CPU. Here they are collected once, then
the workers are forked. They ask for tests in pieces. No piece has tests of two files, so most fixtures of a file are
made once.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

PIECE = 40  # tests at most
WORKER = "PYTEST_WORKER"  # set in the environment of a worker: its number


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forked processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, if there are to be any."""
    option = session.config.option
    if option.workers < 1 or option.collectonly or session.testsfailed:
        return None
    if option.usepdb:
        raise pytest.UsageError("--pdb needs a terminal: leave out --workers")
    capture = session.config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # workers have folders in it
    gc.collect()
    gc.freeze()  # workers neither look through what all of them share nor copy it
    pieces = deque(_pieces(session.items, option.workers))
    workers: list[_Worker] = []
    started = 0
    try:
        while workers or pieces:
            for _ in range(min(option.workers - len(workers), len(pieces))):
                workers.append(_Worker(session, workers, started))
                started += 1
            wait([stream for worker in workers for stream in (worker.pipe, worker.pidfd)])
            for worker in [*workers]:
                if not worker.listen(pieces):
                    workers.remove(worker)
                    pieces.extendleft([left] if (left := worker.end()) else [])
                if session.shouldfail or session.shouldstop:
                    pieces.clear()
    finally:
        for worker in workers:  # they see it when they want to report a test
            worker.pipe.close()
        for worker in workers:
            os.waitpid(worker.pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def _pieces(items: list[pytest.Item], workers: int) -> Iterator[list[int]]:
    """Yield the tests in pieces, as their numbers. The last ones are small, so that the workers end together."""
    for _, group in groupby(range(len(items)), lambda number: items[number].path):
        numbers = [*group]
        while numbers:
            size = max(1, min(PIECE, (len(items) - numbers[0]) // (8 * workers)))
            yield numbers[:size]
            numbers = numbers[size:]


class _Worker:
    """A worker, seen from the process that forked it."""

    def __init__(self, session: pytest.Session, others: list[_Worker], number: int) -> None:
        self.session = session
        self.given: list[int] = []  # tests that it has not finished
        self.pipe, theirs = Pipe()
        self.pid = os.fork()
        if not self.pid:
            for other in (self, *others):  # else these would not see when the process ends
                other.pipe.close()
            _work(session, theirs, number)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)  # children of a test can keep the pipe open

    def listen(self, pieces: deque[list[int]]) -> bool:
        """Handle what it has sent. Return False once it has ended."""
        ended = bool(wait([self.pidfd], 0))
        try:
            while self.pipe.poll():
                self._handle(self.pipe.recv(), pieces)
        except (EOFError, ConnectionResetError):
            return False
        return not ended

    def _handle(self, message: tuple[str, Any], pieces: deque[list[int]]) -> None:
        kind, value = message
        hook = self.session.config.hook
        if kind == "more":
            piece = pieces.popleft() if pieces else []
            self.given += piece
            with suppress(BrokenPipeError):  # it has ended, which is seen next
                self.pipe.send(piece)
        elif kind == "done":
            item = self.session.items[self.given.pop(0)]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for data in value:
                report = hook.pytest_report_from_serializable(config=self.session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "warning":
            said, *where = value
            message = warnings.WarningMessage(*said)  # type: ignore[assignment]
            values = dict(zip(("when", "nodeid", "location"), where, strict=True))
            hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **values})

    def end(self) -> list[int]:
        """Report the test in which the worker ended, if any. Return the tests that it had still to run."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pidfd)
        self.pipe.close()
        what = f"signal {-status}" if status < 0 else f"status {status}"
        if not self.given:
            assert not status, f"a test process ended: {what}"
            return []
        item = self.session.items[self.given.pop(0)]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", f"the test process ended: {what}", "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        return self.given


class _Teller:
    """A plugin of a worker that passes reports on."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self.config, self.pipe = config, pipe
        self.reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self.pipe.send(("done", self.reports))
        self.reports = []

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        said = str(warning_message.message), UserWarning, warning_message.filename, warning_message.lineno
        self.pipe.send(("warning", (said, when, nodeid, location)))


def _work(session: pytest.Session, pipe: Connection, number: int) -> NoReturn:
    """Be a worker."""
    status = 1
    try:
        _prepare(session.config, number)
        session.config.pluginmanager.register(_Teller(session.config, pipe))
        pipe.send(("more", None))
        left = deque(pipe.recv())
        while left:
            now = session.items[left.popleft()]
            if not left:  # fixtures end according to the next test
                pipe.send(("more", None))
                left.extend(pipe.recv())
            then = session.items[left[0]] if left else None
            now.config.hook.pytest_runtest_protocol(item=now, nextitem=then)
        status = 0
    except (KeyboardInterrupt, EOFError, BrokenPipeError):  # the main process ends, too
        session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _prepare(config: pytest.Config, number: int) -> None:
    """Give a worker files of its own."""
    os.environ[WORKER] = str(number)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.get_terminal_writer()._file = open(os.devnull, "w")
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker{number}"
    factory._basetemp.mkdir(mode=0o700)
