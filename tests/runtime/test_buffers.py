"""Buffers without a driver: random programs with interleavings chosen by a seed (buffers/program.c)."""

import os
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import cuda
from tests.runtime import hooked

FOLDER = hooked.ROOT / "tests/runtime/buffers"
PROBE = hooked.ROOT / "runtime/hook/probe"
POOL = ("slabs.c", "marks.c", "buffers.c", "moments.c", "rooms.c", "side_file.c")
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *hooked.INCLUDE)

FAULTS = tomllib.loads((FOLDER / "faults.toml").read_text())


def build(folder, *flags, probe=PROBE):
    """Build the program with the files under test interleaved. Objects are cached, because a fault changes only one or
    two.
    """
    under_test = ("-DUNDER_TEST", "-include", FOLDER / "schedule.h", "-DGPT_CHECKED")
    tested = (*(probe / name for name in POOL), PROBE.parent / "write/reasons.c")
    objects = []
    for source in (*tested, *sorted(FOLDER.glob("*.c"))):
        more = () if source.name in ("driver.c", "schedule.c") else under_test
        drain = f'-DDRAIN="{probe}/drain.c"'
        objects.append(folder / f"{source.stem}.o")
        line = ["cc", *FLAGS, *flags, *more, drain, "-c", source, "-o", objects[-1]]

        def compile_one(line=line, made=objects[-1]):
            subprocess.run(line, check=True)
            return made.read_bytes()

        texts = [file.read_bytes() for file in (source, probe / "drain.c")]
        objects[-1].write_bytes(cuda.keep((source.name, texts, flags, more), compile_one))
    line = ["cc", *flags, "-no-pie", *objects, "-o", folder / "buffers", "-lpthread", "-Wl,--wrap=gettid"]
    subprocess.run(line, check=True)
    return folder / "buffers"


def build_with(folder, fault):
    """Build the program with the fault in it."""
    probe = folder / "probe"
    probe.mkdir(parents=True)
    for name in (*POOL, "drain.c"):
        shutil.copy(PROBE / name, probe)
    source = probe / fault["file"]
    text = source.read_text()
    assert text.count(fault["old"]) == 1, "the table of faults has to follow the code"
    source.write_text(text.replace(fault["old"], fault["new"]))
    return build(folder, f"-I{PROBE}", "-w", probe=probe)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("buffers"))


def run(program, first, count):
    done = subprocess.run([program, str(first), str(count)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_schedules_that_found_a_fault(program):
    for fault in FAULTS.values():
        run(program, fault["seed"], 1)


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_schedules_find_a_fault_that_is_put_back(tmp_path, fault):
    """After a change of the program or the hook, a seed gives a different schedule, and a new seed must be found."""
    program = build_with(tmp_path, FAULTS[fault])
    command = [program, str(FAULTS[fault]["seed"]), "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode, "not with this seed"


def test_random_schedules(program):
    """Each run of the tests uses other schedules; the message of a failure includes the seed."""
    first = int.from_bytes(os.urandom(4))
    assert run(program, first, 400).startswith("400 schedules: ")


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_many_random_schedules(program, part):
    run(program, int.from_bytes(os.urandom(4)), 2500)


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_thread_sanitizer_finds_nothing(tmp_path, part):
    """The random programs also run with system threads, for the sanitizer. The threads sleep most of the time."""
    program = build(tmp_path, "-fsanitize=thread", "-DREAL_THREADS")

    def check(seed):
        line = [program, str(seed)]
        return seed, subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    first = int.from_bytes(os.urandom(4))
    with ThreadPoolExecutor(5) as at_once:
        for seed, done in at_once.map(check, range(first, first + 15)):
            if "unexpected memory mapping" in done.stderr:
                pytest.skip("the kernel's address space randomization is too much for the sanitizer")
            assert (done.returncode, done.stderr) == (0, ""), seed
