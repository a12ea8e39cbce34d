"""The cost of stamps is subtracted from the times of nodes, which then add up to a replay without stamps."""

from __future__ import annotations

import numpy as np
import pytest

from gpt.screen.units import human_time
from gpt.trace.event_costs import find_excess, find_means
from tests.analyze.asked import ask
from tests.analyze.moments import APIS, CAPTURED, KERNELS, LAYERED, MS, graph, node_times, replays, times
from tests.trace import forge

COPIED = [{"type": "memcpy", "op": "DtoD", "nodes": 1, "bytes": 8}]


@pytest.mark.parametrize(
    ("took", "whole", "excess"),
    [((5, 3, 1), 6, 1), ((10, 1, 1), 4, 6), ((1, 12, 3, 2), 9, 3), ((5, 3), 9, 0), ((), 3, 0), ((4, 4), 0, 4)],
)
def test_event_costs_are_subtracted_up_to_the_total(took, whole, excess):
    given = np.array(took, float)
    assert find_excess(given, whole) == excess
    assert np.maximum(given - excess, 0).sum() == min(whole, sum(took))


def test_a_mean_is_finer_than_the_timer_and_leaves_out_outliers():
    """The first node takes 2,400 ns and was once interrupted; the second takes 20 us, and once 27 us."""
    times = [[2304, 20480], [2560, 20480], [2304, 20480], [2560, 20224], [2304, 19968], [90000, 27000]]
    assert find_means(np.array(times, float)).tolist() == [2406.4, 20326.4]
    assert find_means(np.array([[7.0], [9000.0]])).tolist() == [7.0]


def recorded(*gpu: tuple[int, float], pause: int = 500) -> list:
    """Return a trace whose first replay took 30 ms, with nodes of 1, 2, 3 and 6 ms, and replays without stamps."""
    calls = [(2, 50), *((2, ms) for ms, _ in gpu)]
    took = times((2, 50, 2, 0, 30), *((2, ms, 2, 0, each) for ms, each in gpu))
    nodes = node_times(50, [1, 2, 3, 6], pause)
    return [took, *graph(5, CAPTURED, operations=COPIED), *replays(*calls), *LAYERED, nodes]


def nodes_of(flat: list) -> tuple[list, str]:
    found = ask("graphs", forge.trace(*APIS, *KERNELS, *flat))
    return [(row["time"], row["stamps"]) for row in found.rows["nodes"]], " ".join(found.verdicts["nodes"])


@pytest.mark.parametrize(
    ("others", "cost", "left"),
    [((8, 9, 7.5), 1, (0, 1, 2, 5)), ((10, 1, 11), 0.5, (0.5, 1.5, 2.5, 5.5)), ((6,), 5 / 3, (0, 1 / 3, 4 / 3, 13 / 3)),
     ((40,), 0, (1, 2, 3, 6))],
)  # fmt: skip
def test_nodes_add_up_to_a_replay_without_events(others, cost, left):
    found, said = nodes_of(recorded(*((80 + at, one) for at, one in enumerate(others)), pause=0))
    assert found == [(round(one * MS), round(cost * MS)) for one in left]
    whole = human_time(sorted(others)[len(others) // 2] * MS)
    how = "so that the nodes add up to" if cost else "they don't add up to more than"
    assert f"{how} {whole}, the median of replays without stamps" in said
    assert f"such a replay took 30.0ms, another one {whole} (medians)" in said


def test_without_matching_replay_a_pause_is_subtracted():
    found, said = nodes_of(recorded())
    assert found == [(ms * MS, 500) for ms in (1, 2, 3, 6)]
    assert "less 500ns: the time between two stamps, as no replay without stamps has a GPU time" in said
    split = ask("summary", forge.trace(*APIS, *KERNELS, *recorded()), args=("--by", "module"))
    assert split.verdicts["by_module"][1].startswith("30.0ms of them are less exact: no replay without stamps")


def test_replays_are_split_without_the_events():
    given = forge.trace(*APIS, *KERNELS, *recorded((80, 8), (90, 2), (100, 40), pause=0))
    found = ask("summary", given, args=("--by", "module"))
    took = {row["name"]: row["gpu_total"] for row in found.rows["by_module"]}
    assert took == {"layers.N.attn": 20 * MS, "layers.N.mlp": 60 * MS}  # 2 to 6
    assert len(found.verdicts["by_module"]) == 1
