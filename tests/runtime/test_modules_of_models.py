"""The modules of PyTorch models, as 'gpt-hook run --layers' records them. GPT_TORCH names a Python with PyTorch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.analyze.asked import Answers, run
from tests.runtime import hooked
from tests.runtime.pythons import find_pythons
from tests.tiers import every

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


def test_threads_that_run_backward_passes_at_once(tmp_path):
    """Several threads may add hooks of different modules by the same tensor."""
    ran(tmp_path, "threads")
    kernels = {"attn": 60, "attn.q": 60, "attn.o": 60, "mlp.N": 60}
    expected = {f"layers.N.{name}": count for name, count in kernels.items()} | {"head": 20}
    assert launches(tmp_path) == expected | {f"{name} (backward)": count for name, count in expected.items()}


def test_replays_belong_to_the_modules_that_were_captured(tmp_path):
    ran(tmp_path, "decode")
    assert launches(tmp_path, "layer") == {**{f"layers.{n}": 40 for n in range(3)}, "head": 10}


@pytest.mark.full
def test_compiled_code_has_the_same_graphs(tmp_path):
    with_layers = ran(tmp_path, "compiled")
    (tmp_path / "t.mp").unlink()
    assert ran(tmp_path, "compiled", options=()) == with_layers != []


@pytest.mark.full
def test_kernels_of_compiled_code_belong_to_the_module_of_their_last_operation(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with_layers = ran(tmp_path, "inductor")
    forward = {f"layers.{n}.{part}": 1 for n in range(2) for part in ("up", "down")}
    # of the input, no gradient is needed
    backward = {f"{name} (backward)": 1 if name == "layers.0.up" else 2 for name in forward}
    folded = Counter()
    for name, count in (forward | backward).items():
        folded[name.replace("0", "N").replace("1", "N")] += count
    assert launches(tmp_path) == folded
    assert launches(tmp_path, "layer") == {
        **{f"layers.{n}": 2 for n in range(2)}, "layers.0 (backward)": 3, "layers.1 (backward)": 4,
    }  # fmt: skip
    (tmp_path / "t.mp").unlink()
    assert ran(tmp_path, "inductor", options=()) == with_layers


ODD = "overrides", "exceptions", "autograd", "transforms", "scripts", "flows", "functions", "compiled_backward"


@pytest.mark.full
@pytest.mark.parametrize("names", [ODD, ("lives",)])  # Dynamo keeps modules until Python has ended
def test_program_does_not_notice_the_hook(tmp_path, names):
    found = []
    for options in (("--layers", "-f"), ()):
        command = (python(), "-X", "dev", "-W", "ignore", PROGRAM.with_name("odd_modules.py"), *names)
        done = hooked.run(tmp_path / f"{len(options)}.mp", *command, options=options)
        found.append((done.returncode, done.stdout, done.stderr))
    assert found[0] == found[1]
    assert found[0][0] == 0 and len(found[0][1].splitlines()) >= len(names), found[0][2]
    assert names == ODD or found[0][1].splitlines()[-1] == "last 1"


def test_an_optimizer_and_a_named_range_have_rows(tmp_path):
    ran(tmp_path, "optimized")
    found = launches(tmp_path, "layer")
    assert {name: count for name, count in found.items() if not name.startswith(("layers.", "head"))} == {
        "SGD.step": 1, "loss of all": 1, "(unknown)": 1,
    }  # fmt: skip


@pytest.mark.full
def test_a_loss_and_the_weights_have_rows(tmp_path):
    ran(tmp_path, "lossy")
    assert launches(tmp_path) == {
        "head": 1, "head (backward)": 1, "mse_loss()": 1, "mse_loss() (backward)": 1, "backward()": 1,
        "(set-up: weights)": 1, "(set-up: weights of head)": 1,
    }  # fmt: skip


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
def test_python_without_gpt_layers_is_reported(tmp_path, option):
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


def test_the_warning_never_gets_into_the_output(tmp_path):
    shutil.copy(FOLDER / "sitecustomize.py", tmp_path)
    (tmp_path / "__init__.py").write_text("raise ValueError('wrong')\n")
    line = ["sh", "-c", '"$0" -c "print(1)" 2>&-', sys.executable]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=True)
    assert done.stdout == b"1\n"
    line[2] = line[2].removesuffix(" 2>&-")
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=True)
    assert done.stderr == b"gpt.layers: warning: no modules are recorded: ValueError('wrong')\n"


MODULE = """
import torch

class Module:
    __name__ = "fake"

    def named_modules(self):
        yield "", self
        yield from (("layers.0", one) for one in vars(self).values())

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def apply(self, function):
        return function(self)
"""
TORCH = """
import contextlib

class Tensor:
    mode = False
    grad_fn = property(lambda self: self.node)

class _C:
    DisableTorchFunction = contextlib.nullcontext

    @staticmethod
    def is_grad_enabled():
        return True

    @staticmethod
    def _is_torch_function_mode_enabled():
        return Tensor.mode

import torch.nn.functional
import torch.nn.modules.module
import torch.autograd
"""
FUNCTIONAL = """
def mse_loss(x, *more, then=None):
    return then() if then else x
"""
AUTOGRAD = """
def _engine_run_backward(nodes):
    for node in nodes:
        for hook in node.hooks:
            assert hook(()) is None
"""
PROGRAM_OF_FAKE = """
import ctypes, sys, torch
from torch.nn.modules.module import Module

driver = ctypes.CDLL("libcuda.so.1")
assert not driver.cuInit(0)

class Node:
    made = []

    def __init__(self):
        self.hooks, self.number = [], len(self.made)
        self.made.append(self)

    def _sequence_nr(self):
        return self.number

    def _register_hook_dict(self, tensor):
        assert not torch.Tensor.mode
        self.hooks += tensor._backward_hooks.values()

    def register_prehook(self, hook):
        assert torch.Tensor.mode
        self.hooks.append(hook)

class Made(torch.Tensor):
    def __init__(self):
        self.node = Node()

class Inner(Module):
    def forward(self, x, more=None):
        if x is None:
            raise ValueError("no input")
        return (Made(), {"b": [Made()]}, 1, None)

class Outer(Module):
    def forward(self, x, **more):
        return self.inner(x, **more)

model = Outer()
model.inner = Inner()
model(Made(), more=[Made()])
try:
    model(None)
except ValueError as error:
    print(error)
print([len(node.hooks) for node in Node.made])
torch.Tensor.mode = True
assert len(model(Made())[0].node.hooks) == 1
torch.Tensor.mode = False
torch.autograd._engine_run_backward(Node.made[::-1])
from torch.nn import functional
from torch.nn.functional import mse_loss

class Apart(Module):
    def apply(self, function):
        return super().apply(function) + function(self)

    def forward(self, x):
        return mse_loss(x, then=lambda: 4)

apart = Apart()
print(apart(1), mse_loss(2), functional.mse_loss(3, 4, then=lambda: mse_loss(5)), apart.apply(lambda one: 6))
print(mse_loss.__name__, [len(mse_loss(Made(), Made()).node.hooks) for _ in range(2)])
try:
    apart.apply(lambda one: one(None) and 1 / 0)
except ZeroDivisionError as error:
    print(error)
print(apart(7))
del apart
before = sys.getrefcount(None), sys.getrefcount(model.inner)
for _ in range(1000):
    model.inner(1)
    Node.made.clear()
print(sys.getrefcount(model.inner) == before[1], abs(sys.getrefcount(None) - before[0]) < 100)
"""


@pytest.fixture
def fake(tmp_path) -> Path:
    """Write a package with the parts of PyTorch that gpt.layers uses, and a program that uses it."""
    for name in ("", "nn", "nn/modules"):
        (tmp_path / "torch" / name).mkdir()
        (tmp_path / "torch" / name / "__init__.py").write_text("")
    files = {"__init__": TORCH, "nn/modules/module": MODULE, "nn/functional": FUNCTIONAL, "autograd": AUTOGRAD}
    for name, text in files.items():
        (tmp_path / "torch" / f"{name}.py").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM_OF_FAKE)
    return tmp_path


def count_ranges(tmp_path) -> dict[str, int]:
    done = run("nvtx", "--json", tmp_path / "t.mp")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row["count"] for row in Answers(done.stdout).rows["ranges"]}


@pytest.mark.parametrize("python", list(find_pythons()), ids=lambda path: Path(path).name)
def test_it_loads_in_other_versions_of_python(tmp_path, python):
    if not shutil.which(python):
        pytest.skip(f"no {Path(python).name}")
    code = "import sys; print(type(sys.meta_path[0]).__name__)"
    done = hooked.run(tmp_path / "t.mp", python, "-c", code, options=("--layers",))
    assert (done.stdout, done.stderr) == ("Patcher\n", "")


@pytest.mark.parametrize("python", every(3, list(find_pythons())), ids=lambda path: Path(path).name)
def test_calls_pass_through_the_library_in_each_version_of_python(fake, python):
    if not shutil.which(python):
        pytest.skip(f"no {Path(python).name}")
    done = hooked.run(fake / "t.mp", python, "program.py", options=("--layers",), cwd=fake)
    printed = "no input\n[1, 1, 1, 1]\n4 2 5 12\nmse_loss [1, 1]\ndivision by zero\n4\nTrue True\n"
    assert (done.stdout, done.stderr) == (printed, "")
    assert count_ranges(fake) == {
        "Outer": 3, "layers.0": 1003, "layers.0 (backward)": 4, "Apart": 2, "mse_loss()": 5, "(set-up: weights)": 2,
    }  # fmt: skip
