"""gpt-analyze summary --by, on hand-made ranges, launches and graphs."""

from __future__ import annotations

import pytest

from gpt.trace.modules import LAYERS, find_layer, fold
from tests.analyze.asked import Answers, ask, run
from tests.analyze.moments import (
    APIS,
    CAPTURED,
    KERNELS,
    LAYERED,
    MS,
    at,
    graph,
    launches,
    node_times,
    ranges,
    replays,
    times,
)
from tests.trace import forge


def by(what: str, *inner: list[dict] | dict, **options: object) -> Answers:
    flat = [record for part in inner for record in (part if isinstance(part, list) else [part])]
    return ask("summary", forge.trace(*APIS, *KERNELS, *flat), args=("--by", what), **options)


def rows(found: Answers, what: str, *names: str) -> dict[str, tuple]:
    return {row["name"]: tuple(row.get(name) for name in names) for row in found.rows[f"by_{what}"]}


def test_names_are_folded():
    assert fold("model.layers.31.attn") == "model.layers.N.attn" and fold("step 12") == "step N"
    assert find_layer("model.layers.31.attn.q_proj") == "model.layers.31" and find_layer("lm_head") == "lm_head"
    assert find_layer("layers.3.attn (backward)") == "layers.3 (backward)"


def test_launches_belong_to_the_ranges_open_on_their_thread():
    steps = ranges(("step 0", 0, 10), ("fwd", 2, 4), ("step 1", 10, 20), ("fwd", 12, 14), ("other", 0, 30, 2))
    own = launches(
        (1, 1, 1), (1, 2, 1), (1, 3.9, 1), (1, 4, 2), (1, 10, 1), (1, 13, 1), (1, 20, 1), (2, 3, 1), (3, 3, 1)
    )
    found = by("range", own, steps)
    assert rows(found, "range", "launches") == {
        "step N": (3,), "step N/fwd": (3,), "other": (1,), "(unknown)": (2,),
    }  # fmt: skip
    assert [row["name"] for row in found.rows["by_range"]][-1] == "(unknown)"
    assert (
        found.verdicts["by_range"][0] == "(unknown): 22.2 % of the launches, without an open range; of that, k1 100.0 %"
    )


def test_ranges_of_several_domains_end_in_any_order():
    crossed = [*ranges(("a", 0, 10)), *ranges(("b", 5, 15), domain="d", first=7)]
    found = by("range", launches((1, 3, 1), (1, 7, 1), (1, 12, 1)), crossed)
    assert rows(found, "range", "launches") == {"a": (1,), "a/d: b": (1,), "d: b": (1,)}


def test_gpu_time_and_copies_belong_to_the_range_of_their_call():
    copy = forge.calls([(at(3), 9, 3, 0, 0, 0, 64, 0)], forge.MEMORY)
    gpu = times((1, 1, 1, 1, 6), (1, 3, 3, 0, 2), (1, 12, 1, 2, 2))
    known = launches((1, 1, 1), (1, 12, 2)), copy, gpu, ranges(("step 7", 0, 10))
    found = by("range", *known)
    columns = ("launches", "gpu_total", "share")
    assert rows(found, "range", *columns) == {"step N": (1, 8 * MS, 80.0), "(unknown)": (1, 2 * MS, 20.0)}
    assert rows(by("kernel", *known), "kernel", *columns) == {
        "k1": (1, 6 * MS, 60.0), "k2": (1, 2 * MS, 20.0), "memcpy HtoD": (0, 2 * MS, 20.0),
    }  # fmt: skip


def test_replay_is_split_by_kernel_times_outside_graphs():
    eager = launches((1, 1.2, 1), (1, 2.2, 2)), times((1, 1.2, 1, 1, 3), (1, 2.2, 1, 2, 1), (2, 50, 2, 0, 14))
    found = by("module", *eager, graph(5, CAPTURED), replays((2, 50)), LAYERED)
    columns = ("launches", "in_graphs", "gpu_total", "split")
    assert rows(found, "module", *columns) == {
        "layers.N.attn": (3, 2, 15 * MS, 12 * MS), "layers.N.mlp": (2, 1, 3 * MS, 2 * MS),
    }  # fmt: skip
    assert "estimated: 14.0ms of replays" in found.verdicts["by_module"][0]
    found = by("layer", *eager, graph(5, CAPTURED), replays((2, 50)), LAYERED)
    assert rows(found, "layer", "gpu_total") == {"layers.0": (12 * MS,), "layers.1": (6 * MS,)}


def test_a_replay_is_split_by_the_times_of_its_nodes():
    eager = launches((1, 1.2, 1)), times((1, 1.2, 1, 1, 3), (2, 50, 2, 0, 20), (2, 80, 2, 0, 20))
    copied = [{"type": "memcpy", "op": "DtoD", "nodes": 1, "bytes": 8}]
    timed = node_times(50, [1, 2, 3, 1], 500), node_times(80, [2, 2, 3, 6], 500)
    given = *eager, graph(5, CAPTURED, operations=copied), replays((2, 50), (2, 80)), LAYERED, *timed
    found = by("module", *given)
    assert rows(found, "module", "launches", "gpu_total", "split") == {
        "layers.N.attn": (5, 21 * MS, 0), "layers.N.mlp": (2, 22 * MS, 0),
    }  # fmt: skip
    assert found.verdicts["by_module"][0].startswith("40.0ms of replays split in proportion to the times of their")
    assert rows(by("layer", *given), "layer", "gpu_total") == {"layers.0": (31 * MS,), "layers.1": (12 * MS,)}
    assert rows(by("kernel", *given), "kernel", "gpu_total") == {
        "k1": (21 * MS,), "k2": (8 * MS,), "(memcpy)": (14 * MS,),
    }  # fmt: skip


@pytest.mark.parametrize("operations", [[], [{"type": "memcpy", "op": "DtoD", "nodes": 1, "bytes": 1 << 20}]])
def test_unsplittable_replay_is_one_row(operations):
    eager = launches((1, 1.2, 1)), times((1, 1.2, 1, 1, 3), (2, 50, 2, 0, 14))
    nodes = CAPTURED if not operations else [CAPTURED[0], (1, 1, 2.5)]
    found = by("module", *eager, graph(5, nodes, operations=operations), replays((2, 50)), LAYERED)
    assert rows(found, "module", "gpu_total")["(graphs, not split)"] == (14 * MS,)
    assert found.verdicts["by_module"][0].startswith("(graphs, not split): 14.0ms;")
    whole = [(1, 1, 1.5), (2, 1, 3.5)]
    assert rows(by("module", graph(5, whole), replays((2, 50)), eager[1], LAYERED), "module", "gpu_total", "split") == {
        "layers.N.attn": (17 * MS, 0),
    }  # fmt: skip


def test_a_small_copy_in_a_graph_counts_as_its_shortest_kernel():
    eager = launches((1, 1.2, 1), (1, 2.2, 2)), times((1, 1.2, 1, 1, 3), (1, 2.2, 1, 2, 1), (2, 50, 2, 0, 18))
    zeros = [{"type": "memset", "op": "set", "nodes": 2, "bytes": 8}]
    found = by("module", *eager, graph(5, CAPTURED, operations=zeros), replays((2, 50)), LAYERED)
    assert rows(found, "module", "gpu_total", "split") == {
        "layers.N.attn": (15 * MS, 12 * MS), "layers.N.mlp": (3 * MS, 2 * MS), "(graphs, not split)": (4 * MS, 4 * MS),
    }  # fmt: skip
    assert found.verdicts["by_module"][1].startswith("(graphs, not split): 4.00ms of that are small copies")


def test_a_chosen_replay_is_split_by_times_before():
    eager = launches((1, 1.2, 1), (1, 2.2, 2)), times((1, 1.2, 1, 1, 3), (1, 2.2, 1, 2, 1), (2, 50, 2, 0, 14))
    given = [record for part in (*eager, graph(5, CAPTURED), replays((2, 50)), LAYERED) for record in
             (part if isinstance(part, list) else [part])]  # fmt: skip
    options = ("--by", "module", "--tid", "2")
    found = ask("summary", forge.trace(*APIS, *KERNELS, *given), args=options)
    assert rows(found, "module", "gpu_total", "split") == {
        "layers.N.attn": (12 * MS, 12 * MS), "layers.N.mlp": (2 * MS, 2 * MS),
    }  # fmt: skip


def test_set_up_is_apart_from_modules():
    """Variants of a kernel that were tuned don't count when a replay is split."""
    ready = ranges(("layers.0", 0, 9), ("(set-up: autotuning of layers.0.x)", 1, 5), domain=LAYERS)
    work = ranges(("layers.1.x", 10, 19), domain=LAYERS, first=9)
    calls = (1, 2, 1), (1, 3, 1), (1, 6, 1), (1, 11, 2), (1, 12, 1)
    given = (
        *ready,
        *work,
        launches(*calls),
        times((1, 2, 1, 1, 40), (1, 6, 1, 1, 2), (1, 11, 1, 2, 6), (2, 50, 2, 0, 8)),
    )
    given = *given, graph(5, [(1, 1, 6.5), (2, 1, 11.5)]), replays((2, 50))
    found = by("layer", *given)
    assert rows(found, "layer", "launches", "gpu_total") == {
        "layers.1": (3, 12 * MS), "layers.0": (2, 4 * MS), "(set-up: autotuning)": (2, 40 * MS),
    }  # fmt: skip
    assert [row["name"] for row in found.rows["by_layer"]][-1] == "(set-up: autotuning)"
    assert found.verdicts["by_layer"][0] == "set-up: 71.4 % of the GPU time, in none of the modules' rows"
    assert rows(by("module", *given), "module", "path")["(set-up: autotuning of layers.N.x)"] == (
        "(set-up: autotuning of layers.N.x)",
    )


def test_a_node_from_elsewhere_belongs_to_the_replay():
    nodes = [(1, 1, 1.5), (2, 1, 0), (2, 9, 2.5)]  # unknown, and by a thread without ranges
    decode = ranges(("decode", 40, 60, 2), domain=LAYERS, first=9)
    found = by("module", graph(5, nodes), replays((2, 50), (2, 70)), LAYERED, decode)
    assert rows(found, "module", "launches") == {"layers.N.attn": (2,), "decode": (2,), "(unknown)": (2,)}


@pytest.mark.parametrize("options", [("--time", "1.01,"), ("--time", "1.01,", "--tid", "2"), ()])
def test_a_chosen_replay_belongs_to_modules_that_were_captured_before(options):
    """So does a launch in a range that was open when the chosen time began."""
    epochs = ranges(("epoch", 0, 90, 2), first=9)
    given = *APIS, *KERNELS, *graph(5, CAPTURED), *replays((2, 50)), *launches((2, 60, 1)), *LAYERED, *epochs
    found = ask("summary", forge.trace(*given, monotonic=0), args=("--by", "module", *options))
    assert rows(found, "module", "launches") == {
        "layers.N.attn": (2,), "layers.N.mlp": (1,), "epoch (range)": (1,),
    }  # fmt: skip


def test_trace_without_nodes_is_reported():
    decode = ranges(("decode", 40, 60, 2), domain=LAYERS, first=9)
    found = by("module", graph(5, CAPTURED, told=False), replays((2, 50)), LAYERED, decode)
    assert rows(found, "module", "launches") == {"decode": (3,)}
    assert "3 launches in replays counted where the graph was launched" in found.verdicts["by_module"][0]


@pytest.mark.full
def test_many_launches_are_attributed_across_windows():
    """Two threads have more ranges and launches than are read at once."""
    count = 10_000
    inner, calls = [], []
    for n in range(count):
        inner += ranges((f"layers.{n % 4}.x", n, n + 0.5), domain=LAYERS, first=n + 1)
    for start in range(0, count, 1000):
        rows_ = [forge.launch(at(n + part), 9, 1, 1) for n in range(start, start + 1000) for part in (0.2, 0.7)]
        calls += [forge.calls(rows_, forge.LAUNCH, thread) for thread in (1, 2)]
    found = by("layer", calls, inner)
    assert rows(found, "layer", "launches") == {
        **{f"layers.{n}": (count // 4,) for n in range(4)}, "(unknown)": (3 * count,),
    }  # fmt: skip


def test_missing_data_is_reported():
    for what, word in (("module", b"--layers"), ("range", b"no NVTX range")):
        done = run("summary", "--by", what, data=forge.pack(forge.trace(*APIS, *KERNELS, *launches((1, 1, 1)))))
        assert (done.returncode, word in done.stderr) == (1, True), done.stderr
    done = run("summary", "--by", "layer", "--top", 3, data=b"")
    assert done.returncode == 2 and b"--by can't be combined with --top" in done.stderr


def test_outside_of_modules_a_launch_belongs_to_the_innermost_range():
    modules = ranges(("Model", 2, 4), ("head", 3, 4), domain=LAYERS, first=20)
    steps = ranges(("step 0", 0, 10), ("loss", 5, 6), ("step 1", 10, 20))
    found = by(
        "module", launches((1, 1, 1), (1, 2.5, 1), (1, 3.5, 1), (1, 5.5, 1), (1, 11, 1), (1, 30, 1)), steps, modules
    )
    assert rows(found, "module", "launches") == {
        "Model": (1,), "head": (1,), "loss (range)": (1,), "step N (range)": (2,), "(unknown)": (1,),
    }  # fmt: skip
    found = by("layer", launches((1, 5.5, 1), (1, 11, 1)), steps, modules)
    assert rows(found, "layer", "launches") == {"loss (range)": (1,), "step N (range)": (1,)}


def test_a_flame_graph_has_the_parts_of_names():
    modules = ranges(("layers.3.attn", 0, 2), ("layers.3.attn (backward)", 3, 4), domain=LAYERS)
    steps = ranges(("step", 5, 8), ("a;b", 6, 7), first=9)
    own = launches((1, 1, 1), (1, 3.5, 1), (1, 6.5, 1), (1, 7.5, 1))
    assert rows(by("module", own, steps, modules), "module", "path") == {
        "layers.N.attn": ("layers;N;attn",), "layers.N.attn (backward)": ("(backward);layers;N;attn",),
        "a;b (range)": ("(range);a,b",), "step (range)": ("(range);step",),
    }  # fmt: skip
    assert rows(by("range", own, steps), "range", "path")["step/a;b"] == ("step;a,b",)


def test_scopes_of_jax_are_modules():
    """XLA's ranges name them, without --layers. Work without a scope belongs to the compiled function."""
    scopes = ("jvp(layer0)", "jvp(layer1)", "transpose(jvp(layer1))")
    name = "Thunk:#name=jit(step)/{}/mlp/dot_general,hlo_op=fusion.{},unique_hlo_op_id=2#"
    inner = [name.format(scope, at) for at, scope in enumerate(scopes)]
    inner.append("Thunk:#hlo_op=copy.4,unique_hlo_op_id=9#")
    marked = [("XlaModule:#hlo_module=jit_step,program_id=7#", 0, 50)]
    marked += [(text, 10 * at, 10 * at + 5) for at, text in enumerate(inner)]
    own = launches(*((1, 10 * at + 1, 1) for at in range(4)), (1, 60, 1))
    given = ranges(*marked, domain="TSL"), own
    assert rows(by("module", *given), "module", "launches") == {
        "layerN.mlp": (2,), "layerN.mlp (backward)": (1,), "jit_step": (1,), "(unknown)": (1,),
    }  # fmt: skip
    assert rows(by("layer", *given), "layer", "launches") == {
        "layer0": (1,), "layer1": (1,), "layer1 (backward)": (1,), "jit_step": (1,), "(unknown)": (1,),
    }  # fmt: skip
