"""Forked workers: order, errors, killed workers, and leftover processes."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from gpt.base.errors import GptError, MalformedError
from gpt.base.workers import run_all
from tests.tiers import full


def number(n):
    time.sleep(0.002 * (n % 3))
    return n


def fail(error):
    raise error


def children():
    return {line for line in os.listdir("/proc") if line.isdigit() and _parent(line) == os.getpid()}


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


@pytest.fixture(autouse=True)
def nothing_is_left():
    before, files = children(), set(os.listdir("/proc/self/fd"))
    yield
    assert children() <= before
    assert set(os.listdir("/proc/self/fd")) <= files  # descriptors of an earlier test may be closed meanwhile


@pytest.mark.parametrize("jobs", [1, 7, full(2), full(50)])
def test_results_come_in_order(jobs):
    assert list(run_all([partial(number, n) for n in range(40)], jobs)) == list(range(40))
    assert list(run_all([], jobs)) == []


def test_the_work_is_done_elsewhere():
    assert os.getpid() not in set(run_all([os.getpid] * 9, 3))
    assert set(run_all([os.getpid] * 9, 1)) == {os.getpid()}


@pytest.mark.parametrize("jobs", [1, 3])
def test_fault_is_reported_in_its_place(jobs):
    tasks = [partial(number, n) for n in range(9)]
    tasks[4] = partial(fail, MalformedError("broken", "file+0x10"))
    results = run_all(tasks, jobs)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(MalformedError) as caught:
        next(results)
    assert (caught.value.fact, caught.value.where, caught.value.status) == ("broken", "file+0x10", 3)


def test_unwanted_tasks_are_not_awaited():
    """zstd may take a minute for one element without handling signals, and so may this task."""
    endless = partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", 1 << 30)
    results = run_all([partial(number, 0), endless, endless], 2)
    assert next(results) == 0
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 20


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_unpicklable_error_is_reported():
    with pytest.raises(RuntimeError, match="Odd: one"):
        list(run_all([partial(fail, Odd("one", "two")), partial(number, 1)], 2))


@pytest.mark.full
def test_large_results_wait_in_bounds():
    """If the first task is slow, the others pause when too many results are waiting, and no result is lost."""
    size = 20 << 20

    def slow():
        time.sleep(0.5)
        return b"first"

    results = list(run_all([slow, *[partial(bytes, size)] * 12], 3))
    assert results[0] == b"first"
    assert [len(r) for r in results[1:]] == [size] * 12


def test_reader_exits():
    results = run_all([partial(bytes, 1 << 20)] * 50, 2)
    next(results)
    results.close()


def test_process_killed():
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(GptError, match="was killed"):
        list(run_all([partial(number, 1), die, partial(number, 2)], 2))


def test_parent_killed():
    """When the parent is killed, its worker processes end, too."""
    code = """
import os, sys, time
from gpt.base.workers import run_all
def work():
    os.write(1, b"%d\\n" % os.getpid())  # in one piece, whatever PYTHONUNBUFFERED says
    time.sleep(0.3)
    return bytes(1 << 20)
list(run_all([work] * 100, 2))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = {parent.stdout.readline().strip() for _ in range(2)}
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") and _state(pid) != "Z" for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.stdout.close()


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
