"""Buffers without a driver: random programs, whose threads take turns as a seed says (buffers/program.c)."""

import os
import subprocess

import pytest

from tests.runtime import hooked

FOLDER = hooked.ROOT / "tests/runtime/buffers"
PROBE = hooked.ROOT / "runtime/hook/probe"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *hooked.INCLUDE)

# Seeds that found a fault, by the fault. A seed is another schedule once the program or the hook changes: then put the
# fault back and look for a new one.
SEEDS = {
    "a call that waited put an event into a stream of another thread": 403,
    "out of memory, an event in the legacy stream made other streams wait for each other": 3530,
    "a launch that came back after the end was neither written nor counted": 3888,
    "a slab was given up while its stream was being marked": 2261,
    "a stream was destroyed while it was captured": 190,
    "a stream was destroyed while it was being marked": 15,
    "a capture began while an event was put into the stream": 638,
    "launches were taken as ended that began after the wait": 2124,
    "more was allocated than --max-memory": 137,
    "two threads kept each other's slabs from becoming clear, with --complete": 1024,
    "a launch got a slab that was still being cleared": 4,
}


def build(folder, *flags):
    """The program, with the files under test built to take turns."""
    under_test = ("-DUNDER_TEST", "-include", FOLDER / "schedule.h", "-DGPT_CHECKED")
    objects = []
    for source in (
        PROBE / "slabs.c",
        PROBE / "buffers.c",
        PROBE.parent / "write/reasons.c",
        *sorted(FOLDER.glob("*.c")),
    ):
        more = () if source.name in ("driver.c", "schedule.c") else under_test
        objects.append(folder / f"{source.stem}.o")
        subprocess.run(["cc", *FLAGS, *flags, *more, "-c", source, "-o", objects[-1]], check=True)
    line = ["cc", *flags, "-no-pie", *objects, "-o", folder / "buffers", "-lpthread", "-Wl,--wrap=gettid"]
    subprocess.run(line, check=True)
    return folder / "buffers"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("buffers"))


def run(program, first, count):
    done = subprocess.run([program, str(first), str(count)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("fault", SEEDS)
def test_schedules_that_found_a_fault(program, fault):
    run(program, SEEDS[fault], 1)


def test_random_schedules(program):
    """Others each time a commit is tested; the message of a failure has the seed."""
    first = int.from_bytes(os.urandom(4))
    assert run(program, first, 1000).startswith("1000 schedules: ")


@pytest.mark.full
def test_many_random_schedules(program):
    run(program, int.from_bytes(os.urandom(4)), 50000)


@pytest.mark.full
def test_thread_sanitizer_finds_nothing(tmp_path):
    """The same programs as threads of the system."""
    program = build(tmp_path, "-fsanitize=thread", "-DREAL_THREADS")
    for seed in range(300):
        done = subprocess.run([program, str(seed)], capture_output=True, text=True, timeout=120, check=False)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the kernel's address space randomization is too much for the sanitizer")
        assert (done.returncode, done.stderr) == (0, ""), seed
