"""The modules of PyTorch models, as 'gpt-hook run --layers' records them. GPT_TORCH names a Python with PyTorch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.analyze.asked import Answers, run
from tests.runtime import hooked
from tests.runtime.pythons import find_pythons

PROGRAM = Path(__file__).with_name("modules.py")
FOLDER = hooked.ROOT / "gpt" / "layers"


@cache
def python() -> str:
    """Return a Python with PyTorch, or skip the test."""
    found = os.environ.get("GPT_TORCH") or (sys.executable if importlib.util.find_spec("torch") else "")
    return found or pytest.skip("no PyTorch: GPT_TORCH names a Python that has it")


def ran(tmp_path, *scenarios: str, options=("--layers",)) -> list[str]:
    """Run the program and return what it printed."""
    done = hooked.run(tmp_path / "t.mp", python(), PROGRAM, *scenarios, options=options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def launches(tmp_path, by: str = "module") -> dict[str, int]:
    done = run("summary", "--json", "--by", by, tmp_path / "t.mp")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row["launches"] for row in Answers(done.stdout).rows[f"by_{by}"]}


def test_modules_of_a_forward_and_a_backward_pass(tmp_path):
    with_layers = ran(tmp_path, "train")
    assert launches(tmp_path) == {
        "layers.N.attn": 3, "layers.N.attn (backward)": 3,  # scores
        "layers.N.attn.q": 3, "layers.N.attn.q (backward)": 3, "layers.N.attn.o": 3, "layers.N.attn.o (backward)": 3,
        "layers.N.mlp.N": 3, "layers.N.mlp.N (backward)": 3, "head": 1, "head (backward)": 1,
        "(unknown)": 1,  # the loss
    }  # fmt: skip
    assert launches(tmp_path, "layer") == {
        **{f"layers.{n}{note}": 4 for n in range(3) for note in ("", " (backward)")},
        "head": 1, "head (backward)": 1, "(unknown)": 1,
    }  # fmt: skip
    (tmp_path / "t.mp").unlink()
    assert ran(tmp_path, "train", options=()) == with_layers


def test_replays_belong_to_the_modules_that_were_captured(tmp_path):
    ran(tmp_path, "decode")
    assert launches(tmp_path, "layer") == {**{f"layers.{n}": 40 for n in range(3)}, "head": 10}


@pytest.mark.full
def test_compiled_code_has_the_same_graphs(tmp_path):
    with_layers = ran(tmp_path, "compiled")
    (tmp_path / "t.mp").unlink()
    assert ran(tmp_path, "compiled", options=()) == with_layers != []


def traced(tmp_path, *code: str, options=("--layers",), **more) -> subprocess.CompletedProcess[str]:
    return hooked.run(tmp_path / "t.mp", sys.executable, *code, options=options, **more)


def test_a_sitecustomize_of_the_program_runs(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    code = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__, type(sys.meta_path[0]).__name__)"
    done = traced(tmp_path, "-c", code, env=environment)
    own = str(site / "sitecustomize.py")
    assert (done.stdout.split(), done.stderr) == ([own, own, "Patcher"], "")
    (site / "sitecustomize.py").write_text("raise ValueError('its own')\n")
    done = traced(tmp_path, "-c", "print(1)", options=("--layers", "-f"), env=environment)
    plain = subprocess.run(
        [sys.executable, "-c", "print(1)"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == plain.stdout == "1\n" and done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


@pytest.mark.parametrize("option", ["-I", "-sE"])
def test_a_python_that_does_not_load_it_is_said(tmp_path, option):
    done = traced(tmp_path, option, "-c", "print(1)")
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert f"warning: {option}: with this option, Python doesn't load gpt.layers" in done.stderr
    assert not traced(tmp_path, "-u", "-c", "print('-I')", options=("--layers", "-f")).stderr


def test_a_program_without_pytorch_is_as_before(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import torch.nn.modules.module\nimport torch.autograd\n")
    for name in ("nn", "nn/modules", "nn/modules/module", "autograd"):
        (tmp_path / "torch" / name).mkdir()
        (tmp_path / "torch" / name / "__init__.py").write_text("")
    done = traced(tmp_path, "-c", "import torch, json; print(torch.autograd.__name__)", cwd=tmp_path)
    assert done.stdout == "torch.autograd\n" and "gpt.layers: warning: no modules are recorded" in done.stderr
    assert subprocess.run([sys.executable, FOLDER / "sitecustomize.py"], check=False).returncode == 0


@pytest.mark.parametrize("python", list(find_pythons()), ids=lambda path: Path(path).name)
def test_it_loads_in_other_versions_of_python(tmp_path, python):
    if not shutil.which(python):
        pytest.skip(f"no {Path(python).name}")
    code = "import sys; print(type(sys.meta_path[0]).__name__)"
    done = hooked.run(tmp_path / "t.mp", python, "-c", code, options=("--layers",))
    assert (done.stdout, done.stderr) == ("Patcher\n", "")
