"""Tests in forked processes: each is run and reported once, whatever ends its process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CONFTEST = "from tests.forks import pytest_addoption, pytest_runtestloop\n"
TESTS = """
import os, signal, warnings
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(70))
def test_many(number, tmp_path):
    Path("ran.txt").open("a").write(f"{number} {os.getpid()}\\n")

def test_output_of_a_failure_is_shown():
    print("before", "it")
    assert 1 + 1 == 3

def test_the_process_ends():
    os._exit(5)

def test_the_process_is_killed():
    if not os.fork():  # a child that keeps the worker's files open
        os.execvp("sleep", ["sleep", "5"])
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_that(capfd):
    os.system("echo echoed")
    assert capfd.readouterr().out == "echoed\\n"

@pytest.mark.skip(reason="reasons")
def test_skipped():
    pass

def test_warned():
    warnings.warn("beware of it")
"""

OTHERS = """
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def made():
    Path("made.txt").open("a").write("made\\n")
    yield
    Path("made.txt").open("a").write("unmade\\n")

def test_one(made):
    pass

def test_other(made):
    pass
"""


def run(folder, *options):
    line = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", folder, *options, folder]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_each_test_is_run_and_reported_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text(OTHERS)
    status, said = run(tmp_path, "--workers", "2", "-ra", "--basetemp", tmp_path / "base")
    assert status == 1, said
    assert "3 failed, 74 passed, 1 skipped, 1 warning in" in said, said
    for words in ("before it", "assert (1 + 1) == 3", "process ended: status 5", "signal 9", "reasons", "beware of it"):
        assert words in said, said
    ran = [line.split() for line in (tmp_path / "ran.txt").read_text().splitlines()]
    assert sorted(int(number) for number, _ in ran) == [*range(70)]
    assert len({pid for _, pid in ran}) == 2
    assert (tmp_path / "made.txt").read_text().split() == ["made", "unmade"]
    options = ("--maxfail", "1", "-k", "test_output or test_other", "--basetemp", tmp_path / "base")
    status, said = run(tmp_path, "--workers", "2", *options)
    assert (status, "stopping after 1 failures" in said) == (1, True), said
