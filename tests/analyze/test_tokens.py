"""gpt-analyze tokens on hand-made ranges, modules and launches."""

from __future__ import annotations

import pytest

from gpt.analyze.lib.attribution import LAYERS
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


def told(*inner: list[dict] | dict) -> Answers:
    flat = [record for part in inner for record in (part if isinstance(part, list) else [part])]
    return ask("tokens", forge.trace(*APIS, *KERNELS, *flat))


def phases(found: Answers, *names: str) -> dict[str, tuple]:
    return {row["phase"]: tuple(row.get(name) for name in names) for row in found.rows["phases"]}


def steps(name: str, first: float, count: int, step: float, took: float) -> list[tuple]:
    return [(f"{name} {n}", first + n * step, first + n * step + took) for n in range(count)]


def test_ranges_named_like_steps():
    marked = ranges(
        ("prefill", 0, 40), *steps("decode", 50, 5, 10, 8), ("Prefill 2", 500, 530), *steps("decode", 540, 3, 20, 8)
    )
    inner = ranges(("decode attention", 51, 52), first=99)  # inside of a step
    work = launches(
        (1, 1, 1), *((1, 51 + 10 * n, 1) for n in range(5)), (1, 501, 1), *((1, 541 + 20 * n, 2) for n in range(3))
    )
    gpu = times((1, 1, 1, 1, 30), *((1, 51 + 10 * n, 1, 1, 5) for n in range(5)))
    found = told(marked, inner, work, gpu)
    assert phases(found, "steps", "launches", "p50", "p99", "longest") == {
        "prefill": (2, 1, 40 * MS, 50 * MS, 50 * MS), "decode": (8, 1, 10 * MS, 20 * MS, 20 * MS),
    }  # fmt: skip
    assert phases(found, "gpu_time") == {"prefill": (15 * MS,), "decode": (5 * MS,)}
    rows = [(row["generation"], row["tokens"], row["first"], row["p50"]) for row in found.rows["generations"]]
    assert rows == [(1, 6, 50 * MS, 10 * MS), (2, 4, 40 * MS, 20 * MS)]
    assert found.verdicts["phases"][:2] == [
        "steps: NVTX ranges named prefill or decode",
        "100.0 tokens per second, times the batch",
    ]


def test_calls_of_the_outermost_module():
    """A prefill launches another kernel; the ranges of inner modules, of functions, of set-up and of a backward pass
    aren't steps.
    """
    calls = [("Llama", 0, 20), ("layers.0", 1, 19), *[("Llama", 30 + 10 * n, 35 + 10 * n) for n in range(4)]]
    work = launches((1, 2, 2), (1, 3, 2), *((1, 31 + 10 * n, 1) for n in range(4)))
    more = ("generate()", 0, 120), ("(set-up: weights)", 0, 1), ("(set-up: autotuning of layers.0)", 2.5, 4)
    found = told(ranges(*more, *calls, ("Llama (backward)", 100, 110), domain=LAYERS), work)
    assert phases(found, "steps", "p50") == {"prefill": (1, 30 * MS), "decode": (4, 10 * MS)}
    assert [row["tokens"] for row in found.rows["generations"]] == [5]
    assert found.verdicts["phases"][0] == "steps: calls of the outermost module; decode steps launch the same kernels"


@pytest.mark.parametrize("known", [True, False])
def test_launches_that_repeat(known):
    """Each of two generations has a prefill of two kernels, and decode steps of two layers, a head and a wait, all
    outside of modules.
    """
    functions = [*KERNELS, *({**KERNELS[0], "id": number, "name": f"k{number}"} for number in (3, 4))]
    made, waits = [], []
    for begin in (0, 1000):
        made += [(1, begin, 3), (1, begin + 5, 4)]
        made += [(1, begin + 20 + 10 * n + part, 1 + part // 2) for n in range(10) for part in range(3)]
        waits += [(at(begin + 20 + 10 * n + 5), 9, 4, 0, 0, 0) for n in range(10)]
    extra = ranges(("Llama", 0, 1), domain=LAYERS) if known else []
    flat = [forge.api(4, "cuStreamSynchronize"), *functions, *launches(*made), forge.calls(waits, forge.OBJECT), *extra]
    found = ask("tokens", forge.trace(*APIS, *flat))
    assert phases(found, "steps", "launches", "p50", "longest") == {
        "prefill": (2, 2, 20 * MS, 20 * MS), "decode": (20, 3, 10 * MS, 10 * MS),
    }  # fmt: skip
    assert [(row["tokens"], row["first"]) for row in found.rows["generations"]] == [(11, 20 * MS), (11, 20 * MS)]
    assert found.verdicts["phases"][0].startswith("steps: 3 launches that repeat")


def test_layers_of_each_kind_of_step():
    """The prefill launches a kernel in a layer. It's followed by replays, one of which has times of its nodes."""
    marked = ranges(("prefill", 0, 10), *steps("decode", 49, 4, 10, 8), first=50)
    work = times((1, 1.2, 1, 1, 4), (1, 20, 1, 1, 99), *((2, 50 + 10 * n, 2, 0, 8) for n in range(4)))
    replayed = [*graph(5, CAPTURED), *replays(*((2, 50 + 10 * n) for n in range(4)))]
    found = told(marked, LAYERED, launches((1, 1.2, 1), (1, 20, 1)), replayed, node_times(60, [1, 2, 1]), work)
    rows = [tuple(row[name] for name in ("phase", "layer", "launches", "gpu_time", "share"))
            for row in found.rows["layers"]]  # fmt: skip
    assert rows == [
        ("prefill", "layers.0", 1, 4 * MS, 100), ("decode", "layers.0", 2, 6 * MS, 75),
        ("decode", "layers.1", 1, 2 * MS, 25),
    ]  # fmt: skip
    assert found.verdicts["layers"] == [
        "32.0ms of replays split in proportion to the times of their nodes, which --node-times measured in some of them"
    ]
    assert "layers" not in told(marked, launches((1, 50, 1))).rows


def test_missing_data_is_reported():
    for work, word in (([], b"no launch"), (launches((1, 1, 1)), b"no steps of a language model")):
        done = run("tokens", data=forge.pack(forge.trace(*APIS, *KERNELS, *work)))
        assert done.returncode == 1 and word in done.stderr, done.stderr


def test_replays_of_a_graph_captured_in_a_module_are_decode_steps():
    """Requests run the prefill in the module, and then replay the graph, as vLLM does."""
    calls = [("Llama", 0, 5), ("Llama", 20, 25), ("Llama", 60, 65)]
    found = told(
        ranges(*calls, domain=LAYERS),
        graph(8, [(1, 1, 1.5), (2, 1, 2.5)]),
        launches((1, 21, 1), (1, 22, 2), (1, 61, 1), (1, 62, 2)),
        replays(*((1, 30 + 10 * n) for n in range(3)), *((1, 70 + 10 * n) for n in range(4))),
    )
    assert phases(found, "steps", "launches", "p50") == {"prefill": (2, 2, 10 * MS), "decode": (7, 1, 10 * MS)}
    assert [(row["tokens"], row["first"]) for row in found.rows["generations"]] == [(4, 10 * MS), (5, 10 * MS)]
    assert found.verdicts["phases"][0] == (
        "steps: replays of graphs captured in a module; other calls of it are prefill"
    )


def test_replays_of_a_graph_captured_elsewhere_are_no_decode_steps():
    calls = [("Llama", 30 + 10 * n, 35 + 10 * n) for n in range(4)]
    found = told(
        ranges(*calls, domain=LAYERS),
        graph(8, [(1, 1, 1.5), (2, 1, 31)]),  # half of it
        launches(*((1, 31 + 10 * n, 1) for n in range(4))),
        replays(*((1, 38 + 10 * n) for n in range(3))),
    )
    assert phases(found, "steps") == {"prefill": (4,), "decode": (3,)}
    found = told(
        ranges(*calls, domain=LAYERS),
        graph(8, [(1, 1, 1.5), (2, 1, 2.5)]),
        launches(*((1, 31 + 10 * n, 1) for n in range(4))),
        replays(*((1, 38 + 10 * n) for n in range(3))),
    )
    assert phases(found, "steps") == {"decode": (4,)}


@pytest.mark.parametrize("others", [2, 3])
def test_decode_steps_whose_kernels_change_as_the_cache_grows(others):
    """Each of two generations has a prefill of 20 kernels and 6 decode steps of 20, of which `others` are different in
    each step. With 2, steps in a row have 90 % in common.
    """
    functions = [{**KERNELS[0], "id": number, "name": f"k{number}"} for number in range(3, 30)]
    work, calls = [], []
    for begin in (0, 1000):
        for step in range(7):
            start = begin + 40 * step
            calls.append(("Llama", start, start + 30))
            changed = 10 + step  # the function of the kernels that are different
            work += [(1, start + 1 + n, 9 if step == 0 else changed if n < others else 3) for n in range(20)]
    found = told(functions, ranges(*calls, domain=LAYERS), launches(*work))
    if others == 3:
        assert phases(found, "steps")["decode"] != (12,)
    else:
        assert phases(found, "steps", "launches") == {"prefill": (2, 20), "decode": (12, 20)}
        assert [row["tokens"] for row in found.rows["generations"]] == [7, 7]
        assert found.verdicts["phases"][0].endswith("nearly the same kernels as the step before or after")
