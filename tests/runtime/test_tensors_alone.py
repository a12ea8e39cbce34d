"""gpt-hook run --tensors: gpt.tensors in a program's environment without GPT, with any Python."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import Trace
from tests.runtime.pythons import find_pythons

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert cuda.cuCtxSetCurrent(context) == 0 == cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))

class Tensor:
    shape, dtype = (4, 4), "torch.float32"
    def element_size(self): return 4
    def stride(self): return (4, 1)
    def data_ptr(self): return memory.value

class Told:
    __cuda_array_interface__ = {"data": (memory.value, False), "shape": (8,), "typestr": "<i2", "version": 3}

import gpt.tensors

def work(data, more):
    return len([data, more])

with gpt.tensors.trace():
    x = Tensor()
    work(x, {"told": [Told()]})
gpt.tensors.record({"named": x})
assert not hasattr(sys.modules["gpt"], "__version__")
"""


def play(folder, source, *words, python=None, options=("--tensors",), env=()):
    """Run a program in a Python without GPT; the tests' own Python is run without its site-packages."""
    (folder / "program").mkdir(exist_ok=True)
    (folder / "program" / "main.py").write_text(source)
    plain = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    line = [python or os.path.realpath(sys.executable), "-s", folder / "program" / "main.py", *words]
    return hooked.run(folder / "t.mp", *line, options=options, cwd=folder, env=plain | dict(env))


@pytest.mark.parametrize("python", list(find_pythons()), ids=lambda path: Path(path).name)
def test_every_python(tmp_path, python):
    if not shutil.which(python):
        pytest.skip(f"no {Path(python).name}")
    if subprocess.run([python, "-sc", "import gpt"], capture_output=True, cwd=tmp_path).returncode == 0:
        pytest.skip(f"GPT is installed for {python}")
    done = play(tmp_path, PROGRAM, python=python)
    assert (done.returncode, done.stderr) == (0, "")
    records = Trace(tmp_path / "t.mp").of("tensor")
    assert [record["name"] for record in records] == ["x", "data", "more['told'][0]", "named"]
    assert [(record["dtype"], record["bytes"]) for record in records] == [
        ("float32", 64), ("float32", 64), ("int16", 16), ("float32", 64),
    ]  # fmt: skip
    assert records[1]["function"] == "work"


def test_gpt_tensors_is_not_importable_by_default(tmp_path):
    done = play(tmp_path, "import os; assert 'PYTHONPATH' not in os.environ; import gpt.tensors", options=())
    assert done.returncode == 1 and "No module named 'gpt'" in done.stderr


def test_existing_sitecustomize_still_runs(tmp_path):
    """A program can have only one sitecustomize; the existing one still runs."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import sys; sys.mine = True")
    source = "import os, sys, gpt.tensors; assert sys.mine; print(os.environ['PYTHONPATH'])"
    done = play(tmp_path, source, env={"PYTHONPATH": str(tmp_path / "mine")})
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.strip().split(":")
    assert second == str(tmp_path / "mine")
    files = {str(path.relative_to(first)) for path in Path(first).rglob("*.py")}
    assert files == {"gpt/tensors/__init__.py", "gpt/tensors/types.py"}
    done = play(tmp_path, "import os; print(os.environ['PYTHONPATH'])", env={"PYTHONPATH": ""})
    assert done.stdout.strip() == first  # an empty entry at its end would stand for the current folder


@pytest.mark.parametrize("file", ["gpt.py", "gpt/__init__.py"])
@pytest.mark.parametrize("place", ["program", "mine"])
def test_a_gpt_of_the_programs_own_is_what_it_imports(tmp_path, file, place):
    path = tmp_path / place / file
    path.parent.mkdir(parents=True)
    path.write_text("LAYERS = 12")
    done = play(tmp_path, "import gpt; assert gpt.LAYERS == 12", env={"PYTHONPATH": str(tmp_path / "mine")})
    assert (done.returncode, done.stderr) == (0, "")


def test_children(tmp_path):
    """A child process in Python has it, too. A stage that the program runs has all of GPT."""
    source = "import subprocess, sys; sys.exit(any([subprocess.call(sys.argv[1:3]), subprocess.call(sys.argv[3:])]))"
    (tmp_path / "child.py").write_text("import gpt.tensors; print(gpt.tensors.__name__)")
    words = [os.path.realpath(sys.executable), tmp_path / "child.py", "gpt-extract", "--version"]
    done = play(tmp_path, source, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"gpt\.tensors\ngpt-extract [\d.]+\n", done.stdout)


def test_isolated_programs_do_not_have_it(tmp_path):
    line = [os.path.realpath(sys.executable), "-I", "-c", "import gpt"]
    done = hooked.run(tmp_path / "t.mp", *line, options=("--tensors",), cwd=tmp_path)
    assert done.returncode == 1 and "No module named 'gpt'" in done.stderr
