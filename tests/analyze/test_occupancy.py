"""gpt-analyze block_sched: the device's occupancy, and missing launches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.analyze.lib.occupancy import find_busy
from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.analyze.blocks import BLOCK, BLOCKS, FIELDS, NAME, saved, schedule, trace
from tests.tiers import examples, full
from tests.trace import forge


@pytest.mark.parametrize("name", ["block_sched", full("warp_progress"), full("dmat")])
def test_missing_launch_is_an_error_and_draws_nothing(tmp_path, name):
    pytest.importorskip("matplotlib")
    fields = {"block_sched": FIELDS, "dmat": dict.fromkeys(("address", "clock", "bytes"), "u64"),
              "warp_progress": {"clock": "u64", "flops": "u64", "sm": "u32"}}[name]  # fmt: skip
    kind, data = ("array", saved(BLOCKS)) if name == "block_sched" else ("log", bytes(8))
    map_ = forge.probe_map(name, type_=kind, capacity=1, **fields)
    segment = [map_, forge.kernel(3, 4, NAME, 1)]
    for number in range(3):
        segment += [forge.probed(number, 3, 4, 5, 32), forge.buffer(number, data)]
    done = run(name, "--launch", 4, "--plot", tmp_path / "p.png", data=forge.pack(forge.trace(*segment)))
    assert done.returncode == 1 and not (tmp_path / "p.png").exists()
    assert done.stderr.decode() == "gpt-analyze: error: no launch 4: they are numbered from 1 to 3\n"


DEVICE = records.make("device", index=0, name="d", arch="sm_90", runs="ptx", sms=4, warps=64)
UNEVEN = [(1000, 1000, 0), (2000, 1000, 0), (1000, 1000, 1)]  # 2 clocks a ns: SM 1 has nothing to do after 500 ns


def test_occupancy_tail_and_imbalance():
    segment = trace(UNEVEN, UNEVEN, warps=4)
    found = ask("block_sched", [segment[0], DEVICE, *segment[1:]])
    (row,) = found.rows["occupancy"]
    assert row == {
        "name": NAME, "warps": pytest.approx(6), "most_warps": 8, "occupancy": pytest.approx(100 * 6 / 256),
        "tail": 1000, "tail_share": pytest.approx(50), "imbalance": pytest.approx(2000 / 1500),
        "resident": pytest.approx(1.5), "most_blocks": 2, "holds": 256,
    }  # fmt: skip
    assert found.verdicts["occupancy"] == [
        "6 warps resident on average, 8 at most; the device holds 256 (2.3 % used)",
        "the first SM ran out of blocks 500ns before the end, the mean of 2 launches (50.0 % of the time)",
        "the busiest SM was busy 1.33 times as long as the average",
    ]
    assert [(r["tail"], r["most_warps"]) for r in found.rows["launches"]] == [(500, 8)] * 2
    assert [row["busy"] for row in found.rows["sms"]] == [2000, 1000]
    resident = found.rows["resident"]
    during = [row for row in resident[:-1] if abs(row["time"] - 500) > 5]
    assert {(row["time"] < 499, row["warps"], row["blocks"]) for row in during} == {
        (True, 8, 2), (False, 4, 1),
    }  # fmt: skip
    assert resident[-1] == {"time": 1000, "warps": 0, "blocks": 0, "holds": 256}
    (alone,) = ask("block_sched", trace(UNEVEN, warps=4)).rows["occupancy"]
    assert alone["warps"] == pytest.approx(6) and not {"occupancy", "holds"} & alone.keys()


@settings(max_examples=examples(60))
@given(st.lists(BLOCK, min_size=1, max_size=30))
def test_busy_means_a_block_is_resident(blocks):
    clocks = {}
    for start, took, sm in blocks:
        clocks.setdefault(sm, set()).update(range(start, start + took))
    found = schedule(blocks)
    assert dict(zip(found.sms.tolist(), find_busy(found).tolist(), strict=True)) == {
        sm: len(of) for sm, of in clocks.items()
    }
