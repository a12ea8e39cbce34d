"""The package `neutrino`, which programs and analyses import under gpt-neutrino."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.compat.neutrino.command import PACKAGE, TOOLS, find_hook, find_parent, find_tool
from gpt.compat.neutrino.reader import END, ReadMap, make_reader
from gpt.probe.read.load import BUILTIN, load_probes
from gpt.probe.verify import verify
from tests.analyze.asked import run

LETTERS = {"u32": "I", "u64": "Q"}
NAMES = ("block_sched", "dmat", "gmem_bytes", "program_progress", "tensorop_count")


def python(text, *arguments, **env):
    command = [sys.executable, "-c", text, *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(PACKAGE)} | env
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env)


def test_imports_of_existing_programs_work():
    """The imports are those in the seeds' programs and notebooks, and in a probe file in Python that isn't run here."""
    done = python(
        "import neutrino, os, neutrino.language as nl\n"
        "from neutrino import probe, Map, TraceHeader, TraceSection\n"
        "from neutrino.utils.tensortrace import TensorTrace\n"
        "import neutrino.probe, neutrino.tools\n"
        "print(sorted(os.listdir(os.path.join(os.path.dirname(neutrino.__file__), 'tools'))))\n"
        "@Map(level='thread', type='array', size=16, cap=1)\n"
        "class lines:\n"
        "    whole: nl.u64\n"
        "@probe(pos='ld.global', level='thread', before=True)\n"
        "def load():\n"
        "    lines.save(nl.addr)\n"
        "print(load.__name__, lines.__name__, TraceHeader(*range(8)).numProbes, TraceSection(1, 2).offset)\n"
    )
    tools, rest = done.stdout.splitlines()
    assert {f"{name}.{suffix}" for name in NAMES for suffix in ("toml", "py")} <= set(eval(tools))
    assert rest == "load lines 7 2"


@pytest.mark.parametrize("name", NAMES)
def test_tools(name):
    """The tools have the first generation's format, each with an analysis that begins with the generated reader."""
    path = TOOLS / f"{name}.toml"
    loaded = load_probes(path)
    verify(loaded)
    assert loaded.script == str(path.with_suffix(".py"))
    assert "datamodel" in path.read_text() and "[map." not in path.read_text()
    text = path.with_suffix(".py").read_text()
    if name != "dmat":  # dmat takes arrays, because there are many records
        (map_,) = loaded.maps
        fields = [(field.name, LETTERS[field.type]) for field in map_.fields]
        reader = make_reader([ReadMap(map_.name, map_.level, fields, map_.size, map_.capacity == 1)])
        assert text[: text.index(END) + len(END) + 1] == reader


def test_option_p_takes_a_tool_or_a_path(tmp_path, monkeypatch):
    """A folder with a tool's name changes nothing: the notebook has some."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "block_sched").mkdir()
    (tmp_path / "dmat.toml").touch()
    assert find_tool("block_sched") == TOOLS / "block_sched.toml"
    assert find_tool("./dmat.toml") == Path("dmat.toml")
    assert find_tool("warp_sched") == BUILTIN / "warp_sched.toml"


def test_where_a_hook_is_looked_for(tmp_path):
    (tmp_path / "mine.py").touch()
    assert find_hook("mine.py", tmp_path / "probe.toml") == tmp_path / "mine.py"
    assert find_hook("block_sched.py", tmp_path / "probe.toml") == TOOLS / "block_sched.py"
    assert find_hook("block_sched", tmp_path / "probe.toml") is None  # an analysis of gpt-analyze


@pytest.mark.parametrize(
    ("tracedir", "trace", "variable", "parent"),
    [
        (None, None, None, "./trace"),
        ("block_sched", None, None, "block_sched/trace"),
        ("./trace", None, "other", "./trace"),
        ("a/trace/", None, None, "a/trace/"),
        (None, "x", "other", "x"),
        (None, None, "other", "other"),
    ],
)
def test_where_trace_folders_are(monkeypatch, tracedir, trace, variable, parent):
    if variable:
        monkeypatch.setenv("NEUTRINO_TRACEDIR", variable)
    else:
        monkeypatch.delenv("NEUTRINO_TRACEDIR", raising=False)
    assert find_parent(tracedir, trace) == parent


TENSORS = """
from neutrino.utils.tensortrace import TensorTrace, tensortrace

class Tensor:
    shape, dtype = (4, 4), "float32"
    def element_size(self): return 4
    def data_ptr(self): return 4096

def forward(q, k, scale=1):
    return q

with TensorTrace() as t:
    forward(Tensor(), 7)
forward(Tensor(), 8)
tensortrace(forward)(1, Tensor())
"""


def test_tensor_trace(tmp_path):
    """The lines are like Neutrino's. They go to standard error if nothing is recorded."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", TENSORS], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
    )  # fmt: skip
    lines = [line.split("  ") for line in done.stderr.splitlines()]
    assert [line[5:7] for line in lines] == [["q", "forward"], ["k", "forward"]]
    assert all(line[0] == "[call]" and line[2:5] == ["torch.Size([4, 4])", "64", "4096"] for line in lines)
    assert all(re.fullmatch(r"<string>:\d+", line[7]) and int(line[1]) > 10**18 for line in lines)


@pytest.mark.parametrize("first", ["import gpt", "import json"])
@pytest.mark.parametrize("file", ["gpt.py", "gpt/__init__.py"])
def test_a_program_with_a_gpt_of_its_own(tmp_path, file, first):
    """A model may be called `neutrino`, too. Whether ours is loaded before or after it, the program imports its own."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("LAYERS = 12\n")
    check = "import gpt, sys; assert gpt.LAYERS == 12; assert 'gpt.tensors' not in sys.modules"
    (tmp_path / "main.py").write_text(f"{first}\n{TENSORS}\n{check}")
    command = [sys.executable, tmp_path / "main.py"]
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
    assert [line.split("  ")[5] for line in done.stderr.splitlines()] == ["q", "k"]


def analysis(folder, name, data):
    (folder / "r.bin").write_bytes(data)
    return python("import runpy, sys; runpy.run_path(sys.argv.pop(1))", TOOLS / f"{name}.py", folder / "r.bin").stdout


def test_block_sched(tmp_path):
    """Two blocks run at the same time on SM 0, and a third one 5 clocks after the first; one runs alone on SM 1."""
    head = struct.pack("<8I2Q", 4, 1, 1, 32, 1, 1, 0, 1, 16, 48)
    warps = [(100, 10, 0), (100, 20, 0), (115, 30, 0), (7, 30, 1)]
    found = analysis(tmp_path, "block_sched", head + b"".join(struct.pack("<QII", *warp) for warp in warps))
    assert found == "No.block:4 Running:30 Scheduling:1(cycle)\n"  # 90 and 5 clocks in three places


def test_sums(tmp_path):
    head = struct.pack("<8I2Q", 2, 1, 1, 3, 1, 1, 0, 1, 8, 48)
    assert analysis(tmp_path, "gmem_bytes", head + struct.pack("<12I", *range(12))) == "gmem_bytes:66\n"
    head = struct.pack("<8I2Q", 2, 1, 1, 64, 1, 1, 0, 1, 8, 48)
    counts = [warp for warp in (1, 2, 3, 4) for _ in range(32)]
    assert analysis(tmp_path, "tensorop_count", head + struct.pack("<128Q", *counts)) == "tensorop_count:10\n"


def test_program_progress(tmp_path):
    head = struct.pack("<8I2Q", 1, 1, 1, 64, 1, 1, 0, 1, 32, 48)
    steps = [(5, 1, 0), (25, 2, 0), (9, 1, 0), (0, 0, 0)]
    found = analysis(tmp_path, "program_progress", head + b"".join(struct.pack("<QII", *step) for step in steps))
    assert found.splitlines() == [
        "program_progress: block:0 warp:0 steps:2 clocks:20", "program_progress: block:0 warp:1 steps:1 clocks:0",
    ]  # fmt: skip


@pytest.mark.full
def test_dmat(tmp_path):
    """The picture is drawn from a result, and from the .dmat that was kept of it."""
    pytest.importorskip("matplotlib")
    (tmp_path / "probe.toml").write_text((TOOLS / "dmat.toml").read_text())
    head = struct.pack("<8I2Q", 1, 1, 1, 2, 1, 1, 0, 1, 48, 48)
    accesses = [(100, 4096), (100, 4100), (120, 1 << 20), (100, 4096), (0, 0), (0, 0)]
    found = analysis(tmp_path, "dmat", head + b"".join(struct.pack("<QQ", *access) for access in accesses))
    assert found == f"{tmp_path / 'r.png'}\n"
    dmat = (tmp_path / "r.dmat").read_bytes()
    assert dmat == struct.pack("<4Q3QI3QI", 2, 2, 4096, 1 << 20, 0, 1, 4096, 3, 20, 1, 1 << 20, 1)
    (tmp_path / "fig1.dmat").write_bytes(dmat)
    done = python("import runpy, sys; runpy.run_path(sys.argv.pop(1))", TOOLS / "dmat.py", tmp_path / "fig1.dmat")
    assert done.stdout == f"{tmp_path / 'fig1.png'}\n"
    pictures = [(tmp_path / name).read_bytes() for name in ("r.png", "fig1.png")]
    for name in ("r.bin", "fig1.dmat"):
        assert run("dmat", "--plot", tmp_path / "ours.png", tmp_path / name).returncode == 0
        assert (tmp_path / "ours.png").read_bytes() == pictures.pop(0)  # one and the same picture
