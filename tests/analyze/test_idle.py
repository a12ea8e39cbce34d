"""gpt-analyze idle on hand-made timelines, compared with a simpler implementation."""

import io
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from gpt.analyze.idle import Idle
from gpt.analyze.lib.overlay import LAYER, NEAR, PIECE, cut_out, iter_alone, overlay
from gpt.stream import records, wire
from gpt.trace.model import TraceModel
from gpt.trace.process import iter_processes
from gpt.trace.unrecorded import FOREVER, Unrecorded
from tests import tiers
from tests.analyze.asked import Answers, answers, ask, run
from tests.analyze.segments import make_segments
from tests.analyze.working import US, ZERO, Made
from tests.trace import forge


def fold(segment):
    """Read a trace like a worker of a cluster."""
    made = Idle()
    for process in iter_processes(wire.read_records(io.BytesIO(forge.pack(segment)), "in"), made.kinds):
        made.take(process)
        made.end(process)
    return made


def causes(found):
    return [
        (row["cause"], row.get("function"), row["total"] / US, row["count"], row["longest"] / US)
        for row in found.rows["causes"]
    ]


def doing(found):
    return {(row["doing"], row.get("after")): row["total"] / US for row in found.rows["doing"]}


def looked_at(rounds=3):
    """Make a program that reads a value back in each step: 1000 us on the GPU, then 300 us of host code."""
    made = Made()
    for number in range(rounds):
        at = number * 1310
        made.call("cuLaunchKernel", at, 5, at + 5, 990)
        made.call("cuMemcpyDtoHAsync", at + 10, 1000, at + 995, 5, size=4)  # the GPU's copy ends at 1000
    return made


def test_waiting_for_a_value():
    found = ask("idle", looked_at().segment())
    assert causes(found) == [("after a wait", "cuMemcpyDtoHAsync", 2 * 315.0, 2, 315.0)]
    assert doing(found) == {
        ("host code", "cuMemcpyDtoHAsync"): 600.0, ("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync"): 20.0,
        ("cuLaunchKernel", "cuMemcpyDtoHAsync"): 10.0,
    }  # fmt: skip
    (gpu,) = found.rows["gpus"]
    assert (gpu["whole"], gpu["kernels"], gpu["copies"], gpu["idle"], gpu["count"]) == (
        3615 * US, 2970 * US, 15 * US, 630 * US, 2
    )  # fmt: skip
    verdict = found.rows["verdict"][0]
    assert verdict["share"] == pytest.approx(100 * 630 / 3615)
    assert verdict["told"].startswith(
        "the host waits for a value 2 times, 990us each, as '.item()' does; the GPU is then idle for 315us each, while "
        "the host mostly runs its own code: read "
    )
    first = found.rows["longest"][0]
    assert (first["after"], first["before"], first["cause"], first["took"]) == (
        "cuMemcpyDtoHAsync", "k1", "after a wait", 315 * US
    )  # fmt: skip
    assert [row["start"] - ZERO for row in found.rows["longest"]] == [1000 * US, 2310 * US]


def test_host_work_after_a_wait_is_a_cause():
    made = Made()
    for at in (0, 1000, 2000):
        made.call("cuLaunchKernel", at, 5, at + 5, 600).call("cuStreamSynchronize", at + 10, 600)
        made.call("cuMemAlloc", at + 620, 300)
    (row,) = (row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "after a wait")
    assert row["told"] == (
        "the host waits for the GPU 2 times in cuStreamSynchronize, 595us each; the GPU is then idle for 400us each, "
        "while the host is mostly in cuMemAlloc: allocate or register memory before the loop, or take it from a pool "
        "that keeps it, or launch the next work before waiting, or wait less often"
    )


def test_a_wait_costs_at_most_what_the_host_waited():
    """The host needs 300 us for each step and the GPU 100 us. Even if the host didn't wait for the GPU, the GPU would
    be idle for 200 us.
    """
    made = Made()
    for at in (0, 400, 800):
        made.call("cuLaunchKernel", at, 5, at + 5, 90).call("cuStreamSynchronize", at + 10, 87)
    found = ask("idle", made.segment())
    assert causes(found) == [("host code", None, 620.0, 2, 310.0)]
    assert doing(found) == {
        ("host code", "cuStreamSynchronize"): 606.0, ("cuStreamSynchronize", "cuStreamSynchronize"): 4.0,
        ("cuLaunchKernel", "cuStreamSynchronize"): 10.0,
    }  # fmt: skip
    assert found.rows["verdict"][0]["told"] == (
        "the GPU waits 2 times, 310us each, while the host mostly runs its own code between calls, after it waited in "
        "cuStreamSynchronize; NVTX ranges or --sample-host would say which: do that in another thread while the GPU "
        "works, unless it is waiting for requests"
    )


def test_a_wait_may_end_a_little_earlier_than_the_work():
    """The clocks of host and GPU differ by some us."""
    for early, cause in ((NEAR / US - 1, "after a wait"), (NEAR / US + 1, "host code")):
        made = Made().call("cuLaunchKernel", 0, 5, 10, 990)
        made.call("cuStreamSynchronize", 10, 990 - early).call("cuLaunchKernel", 1200, 5, 1205, 10)
        assert causes(ask("idle", made.segment()))[0][0] == cause


def test_kernels_that_are_shorter_than_their_launches():
    made = Made()
    for number in range(11):
        at = 8 * number
        made.call("cuLaunchKernel", at, 5, at + 4, 3)
    found = ask("idle", made.segment())
    assert causes(found) == [("launch pace", None, 50.0, 10, 5.0)]
    assert doing(found) == {("host code", None): 10.0, ("cuLaunchKernel", None): 40.0}
    assert found.rows["verdict"][0]["told"] == (
        "launch-bound: kernels take 3.00us, but are launched every 8.00us; a CUDA graph would save at most 60.2 %; "
        "'gpt-analyze launches' lists them"
    )


def test_call_counts_for_the_code_it_covers():
    """The GPU was idle during an allocation that began while it worked, and during host code after it. Other threads'
    calls don't matter.
    """
    made = Made().call("cuLaunchKernel", 0, 5, 5, 95)
    made.call("cuMemAlloc", 50, 250).call("cuStreamSynchronize", 90, 500, thread=2)
    made.call("cuLaunchKernel", 400, 10, 410, 10)
    found = ask("idle", made.segment())
    assert causes(found) == [("in a call", "cuMemAlloc", 310.0, 1, 310.0)]
    assert doing(found) == {("cuMemAlloc", None): 200.0, ("host code", None): 100.0, ("cuLaunchKernel", None): 10.0}
    assert (
        "the GPU waits 1 time, 310us, while the host is mostly in cuMemAlloc: allocate"
        in found.rows["verdict"][0]["told"]
    )


def test_host_code_in_a_range():
    made = Made().call("cuLaunchKernel", 0, 5, 5, 95).range("step", 0, 600).range("load", 110, 480)
    made.range("other thread", 0, 600, thread=2).call("cuLaunchKernel", 500, 5, 505, 10)
    found = ask("idle", made.segment())
    assert causes(found) == [("host code", None, 405.0, 1, 405.0)]
    assert {row["range"]: row["total"] / US for row in found.rows["ranges"]} == {"load": 370.0, "step": 35.0}
    assert " between calls, mostly in the range 'load': do that" in found.rows["verdict"][0]["told"]
    assert found.rows["longest"][0]["range"] == "load"


def test_work_that_was_launched_in_time():
    made = Made().call("cuLaunchKernel", 0, 5, 5, 95).call("cuLaunchKernel", 10, 5, 300, 10)
    made.call("cuMemAlloc", 120, 100)
    found = ask("idle", made.segment())
    assert causes(found) == [("begun late", None, 200.0, 1, 200.0)] and doing(found) == {
        ("launched, not begun", None): 200.0
    }


def test_work_that_follows_other_work_takes_a_moment():
    made = Made().call("cuLaunchKernel", 0, 5, 5, 95).call("cuLaunchKernel", 10, 5, 103, 10)
    assert causes(ask("idle", made.segment())) == [("between work", None, 3.0, 1, 3.0)]


def test_copies_are_not_idle_and_overlap_counts_once():
    """Two kernels overlap, and so do a kernel and a copy. Time in which both run counts once."""
    made = Made().call("cuMemHostAlloc", 0, 1, address=0x10000, size=0x1000)
    made.call("cuLaunchKernel", 10, 5, 15, 100).call("cuLaunchKernel", 20, 5, 25, 40)
    made.call("cuMemcpyHtoDAsync", 30, 5, 100, 40, size=100, address=0x10800)
    made.call("cuMemcpyHtoDAsync", 40, 5, 140, 10, size=300, address=0x11000)
    found = ask("idle", made.segment())
    (gpu,) = found.rows["gpus"]
    assert (gpu["whole"], gpu["kernels"], gpu["copies"], gpu["idle"]) == (135 * US, 100 * US, 35 * US, 0)
    assert "causes" not in found.rows
    (row,) = found.rows["verdict"]
    assert row["cause"] == "only copies" and "1 of 2 copies to the device (300 B of 400 B) use page" in row["told"]


def test_tiny_copies_are_better_made_together():
    """200 copies of 64 bytes, for which pinned memory wouldn't help, and a large copy, for which it would."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 10)
    for number in range(200):
        made.call("cuMemcpyHtoDAsync", 15 + 4 * number, 2, 15 + 4 * number, 4, size=64, address=0x10000)
    (row,) = ask("idle", made.segment()).rows["verdict"]
    assert row["told"] == "for 98.8 % of the time the GPU only copies: 200 times, 64 B each: copy more at once"
    other = Made().call("cuLaunchKernel", 0, 5, 5, 10).call("cuMemcpyHtoDAsync", 0, 1, 15, 900, size=1 << 26)
    assert "use pageable memory: pin" in ask("idle", other.segment()).rows["verdict"][0]["told"]


def test_time_that_was_not_recorded_is_neither():
    made = looked_at(2).found
    off = [records.make("recording", at=ZERO + at * US, on=on) for at, on in ((0, True), (1100, False), (1200, True))]
    found = ask("idle", forge.trace(*made, *off))
    assert causes(found) == [("recording off", None, 215.0, 1, 215.0)]
    (gpu,) = found.rows["gpus"]
    assert (gpu["whole"], gpu["idle"]) == (2205 * US, 215 * US) and doing(found)[
        "host code", "cuMemcpyDtoHAsync"
    ] == 200
    assert "recording was off for 100us between work, which are neither busy nor idle" in found.verdicts["gpus"]


def test_idle_and_gaps_agree_about_a_pause_of_the_recording():
    made = looked_at(3).found
    off = [records.make("recording", at=ZERO + at * US, on=on) for at, on in ((0, True), (1100, False), (1200, True))]
    idle, gaps = (ask(command, forge.trace(*made, *off)) for command in ("idle", "gaps"))
    assert causes(idle) == [
        ("after a wait", "cuMemcpyDtoHAsync", 315.0, 1, 315.0), ("recording off", None, 215.0, 1, 215.0)
    ]  # fmt: skip
    (gpu,), (same,) = idle.rows["gpus"], gaps.rows["idle"]
    assert (gpu["count"], gpu["idle"]) == (same["count"], same["total"]) == (1, 530 * US)
    assert [row["took"] for row in idle.rows["longest"]] == [row["took"] for row in gaps.rows["periods"]] == [315 * US]
    told = "1 idle period around that time is not counted or listed, but the recorded time is in 'idle' and 'share'"
    assert told in gaps.verdicts["idle"] and f"{told}, as 'recording off'" in idle.verdicts["gpus"]
    assert [row["told"] for row in idle.rows["verdict"] if row["cause"] == "recording off"] == [
        "recording was off for a part of 1 idle period, so the cause is unknown: record without a pause to see it"
    ]


def test_outlier_time_has_no_mean():
    made = Made()
    for at in (0, 400, 800, 9000):
        made.call("cuLaunchKernel", at, 5, at + 5, 90).call("cuStreamSynchronize", at + 10, 87)
    told = ask("idle", made.segment()).rows["verdict"][0]["told"]
    assert told.startswith("the GPU waits 3 times, 8.73ms together, 8.11ms of it once, while the host mostly runs its ")


def test_a_long_wait_does_not_count_once_for_each_piece_of_work_in_it():
    """Four kernels are queued, and the host waits for all of them at once."""
    made = Made()
    for number in range(4):
        made.call("cuLaunchKernel", 10 * number, 5, 100 + 1001 * number, 1000)
    found = ask("idle", made.call("cuStreamSynchronize", 50, 4100).segment())
    assert causes(found) == [("between work", None, 3.0, 3, 1.0)] and "waited" not in found.rows["causes"][0]


def test_shared_gpu_is_idle_if_neither_process_uses_it():
    one = Made().call("cuLaunchKernel", 0, 5, 5, 95).call("cuLaunchKernel", 390, 5, 400, 100)
    two = Made(pid=11).call("cuLaunchKernel", 150, 5, 155, 100)
    found = ask("idle", one.segment(), two.segment())
    (gpu,) = found.rows["gpus"]
    assert (gpu["whole"], gpu["kernels"], gpu["idle"], gpu["count"]) == (495 * US, 295 * US, 200 * US, 2)
    assert "pid" not in gpu and [(row["pid"], row["took"]) for row in found.rows["longest"]] == [
        (10, 145 * US), (11, 55 * US)
    ]  # fmt: skip
    assert "verdict" in found.rows and not any("apart" in line for line in found.verdicts["gpus"])


def test_time_between_two_runs_on_a_gpu_is_not_idle():
    """The second process begins to work 400 us after the last work of the first."""
    one = Made().call("cuLaunchKernel", 0, 5, 5, 95).call("cuLaunchKernel", 140, 5, 150, 50)
    two = Made(pid=11).call("cuLaunchKernel", 590, 5, 600, 100).call("cuLaunchKernel", 750, 5, 760, 40)
    found = ask("idle", one.segment(), two.segment())
    (gpu,) = found.rows["gpus"]
    assert (gpu["whole"], gpu["kernels"], gpu["idle"], gpu["count"]) == (395 * US, 285 * US, 110 * US, 2)
    told = "recording was off or no process used the GPU for 400us between work, which are neither busy nor idle"
    assert told in found.verdicts["gpus"]
    gaps = ask("gaps", one.segment(), two.segment())
    row = next(row for row in gaps.rows["idle"] if row["stream"] == "all processes")
    assert (row["busy"], row["total"], row["count"]) == (285 * US, 110 * US, 2)
    assert ", without 400us in which no process had work left" in gaps.verdicts["idle"][0]
    assert [period["took"] for period in gaps.rows["periods"]] == [60 * US, 50 * US]
    assert [switch["total"] for switch in gaps.rows["switches"]] == [400 * US]
    apart = [fold(one.segment()), fold(two.segment())]
    apart[0].merge(apart[1])
    assert Answers(apart[0].answer([])).rows == found.rows


def test_traces_that_were_read_apart_say_that_they_share_a_gpu():
    parts = [fold(Made(pid=pid).call("cuLaunchKernel", 0, 5, 5, 95).segment()) for pid in (10, 11)]
    parts[0].merge(parts[1])
    (gpus,) = (answer for answer in parts[0].answer([]) if answer["name"] == "gpus")
    assert any(line.startswith("GPU 0 is in several traces that were read separately") for line in gpus["verdict"])


def test_kernels_with_few_blocks():
    """For half of the time, 33 blocks run on 132 SMs; for the other half, there are enough blocks."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 300, blocks=33)
    made.call("cuLaunchKernel", 10, 5, 305, 100, function=2, blocks=1000)
    (row,) = ask("idle", made.segment()).rows["verdict"]
    assert (row["cause"], row["time"] / US) == ("few blocks", 225.0)
    assert "while kernels run, 56.2 % of the SMs have none" in row["told"]
    made.call("cuLaunchKernel", 20, 5, 405, 300, function=2)
    assert ask("idle", made.segment()).rows["verdict"] != [row]


def test_gpu_busy_with_one_kernel():
    made = Made().call("cuLaunchKernel", 0, 5, 5, 200).call("cuLaunchKernel", 10, 5, 205, 100, function=2)
    made.call("cuLaunchKernel", 20, 5, 305, 300)
    (row,) = ask("idle", made.segment()).rows["verdict"]
    assert (row["cause"], row["time"] / US) == ("one kernel", 500.0)
    assert row["told"].startswith("k1 takes 83.3 % of the kernels' time, and the GPU is busy: 'gpt-hook run -p ")
    first = ask("idle", made.call("cuLaunchKernel", 800, 5, 805, 5).segment()).rows["verdict"][0]
    assert first["cause"] == "host code"


def test_one_action_for_calls_of_one_type():
    made = Made()
    for number in range(3):
        at = 1000 * number
        made.call("cuLaunchKernel", at, 5, at + 5, 100)
        made.call("cuMemAlloc" if number else "cuMemHostAlloc", at + 10, 900)
    made.call("cuLaunchKernel", 3000, 5, 3005, 100)
    (row,) = ask("idle", made.segment()).rows["verdict"]
    assert (row["cause"], row["function"], row["time"] / US) == ("in a call", "cuMemAlloc", 3 * 900.0)
    assert "3 times, 900us each, while the host is mostly in cuMemAlloc and cuMemHostAlloc: allocate" in row["told"]


@pytest.mark.parametrize(("args", "partial"), [(["--cuda-stream", "0x7"], True), (["--gpu", "0"], False), ([], False)])
def test_selection_omitting_work_is_reported(args, partial):
    for name, table in (("idle", "gpus"), ("startup", "startup")):
        found = ask(name, looked_at().segment(), args=tuple(args))
        told = any(line.startswith("only the chosen") for line in found.verdicts[table])
        assert told == (partial or (name == "startup" and bool(args)))


def test_work_without_known_call():
    found = ask("idle", Made().run(0, 10).run(30, 10).segment())
    assert causes(found) == [("not known", None, 20.0, 1, 20.0)]


def test_gpu_never_idle_and_trace_without_times():
    busy = ask("idle", Made().run(0, 10).run(10, 11, function=2).run(21, 10, function=3).segment())
    (row,) = busy.rows["verdict"]
    assert (row["cause"], row["time"]) == ("kernels", 31 * US) and "causes" not in busy.rows
    assert row["told"].startswith("k2 takes 35.5 %, k1 takes 32.3 %, k3 takes 32.3 % of the kernels' time")
    done = run("idle", data=forge.pack(Made().call("cuLaunchKernel", 0, 5).segment()))
    assert (
        done.returncode == 1
        and b"'gpt-hook run --gpu-time' records when kernels ran; 'gpt-analyze gaps'" in done.stderr
    )


def plainly(segments):
    """Return the idle ns of each GPU, by what the host did and by range. Each elementary interval is examined
    separately.
    """
    model = TraceModel(drains=True)
    for process in iter_processes(wire.read_records(io.BytesIO(forge.pack(*segments)), "in"), Idle.kinds):
        model.take(process)
        model.end(process)
    work, calls = model.gpu_times(), model.calls()
    keys = {}
    for number, device in model.gpus():
        keys[number, device] = model.processes[number].gpu(device)
    by_gpu = defaultdict(list)
    for row in work:
        by_gpu[keys[int(row["process"]), int(row["device"])]].append(row)
    done, ranges, total = Counter(), Counter(), 0
    for rows in by_gpu.values():
        rows.sort(key=lambda row: int(row["begin"]))
        reach = int(rows[0]["begin"])
        windows = defaultdict(list)  # intervals in which a process has work left
        for row in rows:
            windows[int(row["process"])] += [int(row["begin"]), int(row["begin"]) + int(row["duration"])]
        windows = [(min(times), max(times)) for times in windows.values()]
        for row in rows:
            begin = int(row["begin"])
            if begin > reach:
                number, thread, call = int(row["process"]), int(row["thread"]), int(row["call"])
                mine = calls[(calls["process"] == number) & (calls["thread"] == thread) & (calls["duration"] > 0)]
                alone, last = [], None
                for one in mine:
                    if last is None or int(one["start"]) >= last:
                        alone.append(one)
                    last = max(last or 0, int(one["start"]) + int(one["duration"]))
                around = [one for chunk in model.iter_ranges(number, FOREVER) for one in chunk
                          if one["pushed"] and one["thread"] == thread]  # fmt: skip
                edges = {reach, begin, call}
                edges |= {int(one["start"]) for one in alone} | {int(one["start"] + one["duration"]) for one in alone}
                edges |= {int(one[name]) for one in around for name in ("begin", "end")}
                edges |= {edge for window in windows for edge in window}
                edges = sorted(edge for edge in edges if reach <= edge <= begin)
                for low, high in pairwise(edges):
                    if not any(first <= low < last for first, last in windows):
                        continue
                    total += high - low
                    inside = [one for one in alone if one["start"] <= low < one["start"] + one["duration"]]
                    what = model.processes[number].api(int(inside[0]["api"])).name if inside else "host code"
                    if low >= call and not (inside and inside[0]["start"] == call):
                        what = "launched, not begun"
                    done[what] += high - low
                    open_ = [one for one in around if one["begin"] <= low]
                    stack = []  # a thread that leaves a range also leaves the ranges inside it
                    for one in open_:
                        while stack and stack[-1][0] <= one["begin"]:
                            stack.pop()
                        stack.append((min(one["end"], stack[-1][0]) if stack else one["end"], one["name"]))
                    while stack and stack[-1][0] <= low:
                        stack.pop()
                    domain, text = model.ranges(number).texts[stack[-1][1]] if stack else (None, "(no range)")
                    ranges[f"{domain}: {text}" if domain else text] += high - low
            reach = max(reach, begin + int(row["duration"]))
    return total, done, ranges


@pytest.mark.parametrize("seed", tiers.every(4, range(40)))
def test_the_same_as_looking_at_each_moment(seed):
    segments = make_segments(seed, 80)
    total, done, ranges = plainly(segments)
    found = answers("idle", *segments)
    if not total:
        assert not found.rows.get("causes")
        return
    sums = Counter()
    for row in found.rows["doing"]:
        sums[row["doing"]] += row["total"]
    assert sums == done
    assert sum(row["total"] for row in found.rows["causes"]) == total == sum(row["idle"] for row in found.rows["gpus"])
    assert {row["range"]: row["total"] for row in found.rows.get("ranges", [])} in ({**ranges}, {})
    assert sum(row["took"] for row in found.rows["longest"]) == total


def test_pieces_are_cut_at_each_edge_of_a_layer():
    """One piece overlaps more than two rows. The layer and the pieces arrive in chunks of one row."""
    pieces = np.zeros(2, PIECE)
    pieces["begin"], pieces["end"], pieces["thread"], pieces["what"], pieces["first"] = (0, 50), (40, 60), 1, -1, True
    layer = np.zeros(4, LAYER)
    layer["begin"], layer["end"], layer["thread"], layer["what"] = (
        (5, 7, 20, 58),
        (10, 9, 30, 90),
        (1, 1, 1, 1),
        (1, 2, 3, 4),
    )
    alone = iter_alone(layer[at : at + 1] for at in range(4))
    parts = np.concatenate(list(overlay((pieces[at : at + 1] for at in range(2)), alone, "what")))
    sums = Counter()
    for part in parts:
        sums[int(part["what"])] += int(part["end"] - part["begin"])
    assert sums == {1: 5, 3: 10, -1: 25 + 8, 4: 2}
    assert parts["first"].tolist().count(True) == 2
    left = cut_out(pieces, Unrecorded([10, 45], [30, 55]))
    assert left[["begin", "end", "first"]].tolist() == [(0, 10, True), (30, 40, False), (55, 60, True)]


@pytest.mark.parametrize(("takes", "cause"), [(30, "after a wait"), (10, "launch pace")])
def test_a_wait_after_each_short_kernel(takes, cause):
    """The GPU is idle for 40 us after each kernel. If the host waited for half of that, launches aren't the cause."""
    made, at = Made(), 0
    for _ in range(10):
        made.call("cuLaunchKernel", at, 4, at + 5, takes).call("cuStreamSynchronize", at + 5, takes)
        at += takes + 40
    assert ask("idle", made.segment()).rows["causes"][0]["cause"] == cause


def takes_turns(blocks=16, waits=0, stream=0, called=0):
    """Launch kernels of 90 us into two streams, each followed by one of 5 us in a third."""
    made = Made()
    made.found.append(forge.api(50, "cuStreamWaitEvent"))
    for number in range(20):
        at = 1000 + 100 * number
        made.call("cuLaunchKernel", at * called + 10 * number, 1, at, 90, stream=8 + number % 2, blocks=blocks)
        made.call("cuLaunchKernel", at * called + 10 * number + 5, 1, at + 92, 5, stream=stream, function=2, blocks=1)
    made.found += [forge.calls([(10**9 + one, 1, 50, 0)]) for one in range(waits)]
    return ask("idle", made.segment()).rows["verdict"]


def test_default_stream_that_keeps_others_from_running():
    row = takes_turns()[0]
    assert (row["cause"], row["time"] / US) == ("default stream", 19 * 90 + 20 * 5)
    assert row["told"].startswith("39 kernels waited for the one before, though both would fit on the GPU: one was in ")
    assert "lets none of 2 other streams run meanwhile; at most 1.81ms could overlap" in row["told"]


@pytest.mark.parametrize("other", [{"blocks": 132}, {"waits": 4}, {"stream": 9}, {"called": 1}])
def test_kernels_that_could_not_run_before_say_nothing_about_the_default_stream(other):
    """There are too many blocks, streams wait for events, no kernel is in the default stream, or it's launched late."""
    assert "default stream" not in [row["cause"] for row in takes_turns(**other)]


@pytest.mark.parametrize(("allocations", "said"), [(3, True), (2, False)])
def test_work_that_begins_late_after_an_allocation(allocations, said):
    """Five kernels begin 2 ms after their launch. Memory is to blame if it's allocated before at least half of them."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 10)
    for step in range(5):
        at = 3000 * step + 100
        if step < allocations:
            made.call("cuMemAlloc", at, 80)
        made.call("cuLaunchKernel", at + 90, 5, at + 2090, 10)
    row = next(row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "begun late")
    assert ("memory that was just allocated isn't ready yet (" in row["told"]) == said
    assert ("its stream waits for another one" in row["told"]) != said


@pytest.mark.parametrize(("once", "first"), [(3000, "launch pace"), (30_000, "host code")])
def test_what_happens_in_each_step_comes_before_what_happened_once(once, first):
    """A warm-up of 3 ms is followed by 40 kernels of 10 us that are launched every 60 us, which costs 2 ms."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 10)
    for step in range(41):
        made.call("cuLaunchKernel", once + 60 * step, 5, once + 60 * step + 5, 10)
    causes = [row["cause"] for row in ask("idle", made.segment()).rows["verdict"]]
    assert causes[0] == first and {*causes[:2]} == {"host code", "launch pace"}
