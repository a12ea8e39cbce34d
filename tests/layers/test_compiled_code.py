"""gpt.layers.compiled finds the module that each kernel of a compiled graph belongs to. These tests don't need
PyTorch.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpt.layers.compiled import CompiledCode, shorten

SOURCE = '''# AOT ID: ['0_inference']
import math

triton_0 = """
    # Topologically Sorted Source Nodes: [silu], Original ATen: [aten.silu]
    return 1
"""
# Topologically Sorted Source Nodes: [silu], Original ATen: [aten.silu]
kernel = math.floor


class Runner:
    def call(self, args):
        inside.append(now())
        if args:
            # Topologically Sorted Source Nodes: [silu, linear_1], Original ATen: [aten.silu, aten.addmm]
            inside.append(now())
        # Topologically Sorted Source Nodes: [mystery], Original ATen: []
        inside.append(now())
        # Unsorted Source Nodes: [norm], Original ATen: []
        inside.append(now())
        return (args, )


def get_args():
    return (1, )
'''


def node(name: str, path: str | None, before: str = "", key: str = "nn_module_stack", op: str = "call_function"):
    meta: dict = {key: {"a": ("L['self']", object), "b": (path, object)}} if path else {}
    if before:
        meta["from_node"] = [SimpleNamespace(name=before), SimpleNamespace(name="other")]
    return SimpleNamespace(name=name, op=op, meta=meta)


NODES = [
    node("x", "L['self'].no", op="placeholder"), node("sigmoid", "L['self'].layers.0.act", "silu"),
    node("addmm_1", "L['self'].layers[0].up", "linear_1"), node("mul", None, "mystery"),
    node("norm", "L['self'].norm", key="fwd_nn_module_stack"),
]  # fmt: skip


@pytest.fixture
def run(monkeypatch):
    """Return a function that loads code while a graph is compiled, runs it, and returns the module at each place."""

    def run(source: str, traced: bool = True, nodes=NODES, calls: int = 1) -> list[str | None]:
        made, current, inside = CompiledCode(), [], []
        shared = ModuleType("_gpt_layers")
        shared._gpt_region = lambda site: current.append(None if site is None else site.path)
        shared._gpt_sites = made.sites
        monkeypatch.setitem(sys.modules, "_gpt_layers", shared)
        scope = {"inside": inside, "now": lambda: current[-1] if current else None}

        def load(_):
            exec(made.compile(source, "code.py", "exec", dont_inherit=True), scope)

        made.watch(load, traced)(SimpleNamespace(graph=SimpleNamespace(nodes=nodes)))
        for _ in range(calls):
            assert scope["Runner"]().call(1) == (1,)
        assert scope["get_args"]() == (1,) and "    return 1\n" in scope["triton_0"]
        return inside

    return run


def test_a_kernel_belongs_to_the_module_of_its_last_operation(run):
    assert run(SOURCE, calls=2) == 2 * [None, "layers.0.up", "", "norm"]


def test_a_graph_of_dynamo_names_its_own_nodes(run):
    nodes = [node("linear_1", "L['self'].up", "other")]
    assert run(SOURCE, traced=False, nodes=nodes) == [None, "up", "", ""]


def test_a_cached_backward_pass_has_no_graph(run):
    backward = SOURCE.replace("0_inference", "0_backward")
    assert run(backward, traced=False) == [None] * 4
    assert run(backward) == [None, "layers.0.up", "", "norm"]


def find_sites(source: str, *nodes) -> list[tuple[str, str, bool]]:
    """Return the path, the root, and whether it's a backward pass, of each place in the code."""
    made = CompiledCode()
    graph = SimpleNamespace(nodes=nodes)
    made.watch(lambda _: made.compile(source, "code.py", "exec"), True)(SimpleNamespace(graph=graph))
    return [(site.path, site.root, site.backward) for site in made.sites]


def test_code_that_runs_outside_of_modules_is_named_by_its_graph():
    """An optimizer's step goes through wrappers in PyTorch. A kernel of both belongs to the module."""
    step = '  File "/torch/optim/optimizer.py", line 5, in wrapper\n    x\n  File "/a.py", line 1, in <lambda>\n    y\n'
    own = node("mystery", None)
    own.meta["stack_trace"] = step + '  File "/b.py", line 2, in inner\n    z\n'
    wrapped = node("norm", None)
    wrapped.meta["stack_trace"] = step.partition('\n  File "/a.py')[0]
    silu, product = node("sigmoid", "L['self'].act", "silu"), node("add", None, "linear_1")
    product.meta["stack_trace"] = step
    assert find_sites(SOURCE, own, wrapped, silu, product) == [
        ("act", "object", False), ("", "<lambda>()", False), ("", "wrapper()", False),
    ]  # fmt: skip
    backward = find_sites(SOURCE.replace("0_inference", "0_backward"), own)
    assert backward == [("", "", True), ("", "<lambda>()", True), ("", "", True)]


def test_combined_kernels_belong_to_the_only_function_of_their_graph():
    combined = SOURCE.replace("[norm]", "[]")
    one, other = node("one", None), node("other", None)
    one.meta["stack_trace"] = '  File "/a.py", line 1, in step\n    y\n  File "/b.py", line 2, in inner\n    z\n'
    other.meta["stack_trace"] = '  File "/a.py", line 3, in step\n    x\n'
    nothing = ("", "", False)
    assert find_sites(combined, one, other) == [nothing, nothing, ("", "step()", False)]
    other.meta["stack_trace"] = '  File "/a.py", line 4, in loss\n    x\n'
    assert find_sites(combined, one, other) == [nothing] * 3


def test_comment_inside_expression_is_kept(run):
    source = SOURCE.replace("(args, )", "(args,\n            # Unsorted Source Nodes: [norm]\n )")
    assert run(source) == [None, "layers.0.up", "", "norm"]


def test_code_of_other_form_is_unchanged(run):
    source = SOURCE.replace("            # Topologically", "        # Topologically")
    assert run(source) == [None] * 4  # would be a syntax error


def test_code_outside_a_compilation_is_unchanged():
    made = CompiledCode()
    assert eval(made.compile("1 + 1", "name", "eval")) == 2 and not made.sites
    made.watch(lambda _: None, False)(SimpleNamespace())  # not a graph


@pytest.mark.parametrize(("path", "short"), [
    ("L['self']", ""), ("L['self'].layers.0.n", "layers.0.n"), ("L['fn'].layers[10]['a'].b", "layers.10.a.b"),
    ("G['model']._modules['layers']._modules['0']._orig_mod.q", "layers.0.q"), ("self.head", "head"), ("", ""),
])  # fmt: skip
def test_paths_begin_below_the_outermost_module(path, short):
    assert shorten(path) == short
