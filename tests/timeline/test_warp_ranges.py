"""gpt-analyze timeline: the ranges of warps below their kernel, in each format."""

import json

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from tests.timeline.made import US, ZERO, draw, launch, ran, segment
from tests.trace import forge
from tests.trace.logs import RingLane, write_ring

FIELDS = {"clock": "u64", "sm": "u32", "range": "u32", "number": "u32"}
LOAD, BARRIER = 0, 2  # begins; the ends are one more
BEGIN = ZERO + 16 * US  # the kernel's begin
OTHER = 1 << 40  # how far the second SM's clock is ahead
# Clocks have 0.5 ns. Warp 0 of block 0 made six records and keeps four. The warps of block 1 run on another SM, 1 us
# later; its warp 1 lacks the begin of one range and the end of another.
LANES = [
    RingLane(0, 3, [(1000, LOAD, 0), (1200, LOAD + 1, 0), (3000, LOAD, 16), (3400, LOAD + 1, 16), (5000, LOAD, 32),
                    (5600, LOAD + 1, 32)], 499_500, 0.5),
    RingLane(1, 3, [(1100, LOAD, 0), (1200, BARRIER, 0), (1300, BARRIER + 1, 0), (1400, LOAD + 1, 0)], 499_500, 0.5),
    RingLane(2, 7, [(OTHER + 2000, BARRIER, 0), (OTHER + 2600, BARRIER + 1, 0)], 500_000 - OTHER // 2, 0.5),
    RingLane(3, 7, [(OTHER + 2000, LOAD + 1, 9), (OTHER + 2100, LOAD, 1)], 500_000 - OTHER // 2, 0.5),
]  # fmt: skip
WANTED = {
    "block 0 warp 0": [("load", 1000, 200, 16), ("load", 2000, 300, 32)],
    "block 0 warp 1": [("load", 50, 150, None), ("barrier", 100, 50, None)],
    "block 1 warp 0": [("barrier", 1000, 300, None)],
}  # in ns since the kernel began
TOLD = ["2 records overwritten by later ones: 'ring' in the probe file says how many are kept",
        "1 range not drawn, because no end was recorded",
        "1 range not drawn, because no begin was recorded, or it was overwritten"]  # fmt: skip


def traced(lanes=LANES, *work, stream=0, ring=4, level="warp"):
    """Return a launch of two blocks with two warps each; without `work`, the kernel runs from 16 us on."""
    map_ = forge.probe_map("tiles", type_="log", level=level, capacity=1 << 20, **FIELDS)
    map_ |= {"stored": ["clock", "sm", "shared", "shared"], "ring": ring, "ranges": ["load", "barrier"]}
    told = forge.probed(7, 1, 1, 2, 64) | {"start": ZERO + 10 * US, "stream": stream}
    kernel = forge.kernel(1, 1, "_Z3addPfi", 1)
    return segment(map_, kernel, launch(10, 5, 1), *(work or [ran(16, 20, 1, 10)]), told,
                   forge.buffer(7, write_ring(ring, [lanes])))  # fmt: skip


def chrome(*segments):
    """Return the ranges of each warp in ns since BEGIN, and what's incomplete."""
    page = json.loads(draw("chrome", *segments))
    events = page["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {}
    for e in events:
        if e.get("cat") == "user_annotation":
            begin, took = round(1000 * e["ts"]) - BEGIN, round(1000 * e["dur"])
            found.setdefault(rows[e["pid"], e["tid"]], []).append((e["name"], begin, took, e["args"].get("number")))
    return found, page["incomplete"]


def test_ranges_have_their_times_on_one_clock():
    found, incomplete = chrome(traced())
    assert found == WANTED
    assert incomplete == [f"ranges of warps: {line}" for line in TOLD]


def test_perfetto_has_the_same_events():
    packets = schema.Trace.FromString(draw("perfetto", traced())).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor.name for p in packets if p.HasField("track_descriptor")}
    names = {n.iid: n.name for p in packets for n in p.interned_data.event_names}
    found, open_ = {}, {}
    for packet in packets:
        event = packet.track_event
        track = tracks.get(event.track_uuid, "")
        if packet.HasField("track_event") and track.startswith("block"):
            if event.type == event.TYPE_SLICE_BEGIN:
                number = next((note.int_value for note in event.debug_annotations if note.name == "number"), None)
                open_.setdefault(track, []).append((names[event.name_iid], packet.timestamp - BEGIN, number))
            else:
                name, begin, number = open_[track].pop()
                took = packet.timestamp - BEGIN - begin
                found.setdefault(track, []).append((name, begin, took, number))
    assert {track: sorted(ranges, key=lambda one: one[1]) for track, ranges in found.items()} == WANTED


def test_text_has_a_letter_for_each_name_and_the_first_block():
    lanes = [lane._replace(made=[(clock * 8 if clock < OTHER else clock, *rest) for clock, *rest in lane.made])
             for lane in LANES]  # fmt: skip
    text = draw("ascii", traced(lanes)).decode()
    rows = {line[2:16]: line for line in text.splitlines() if line.startswith("  block")}
    assert set(rows) == {"block 0 warp 0", "block 0 warp 1"}
    drawn = {name: {letter for letter in line[16:] if letter not in " ."} for name, line in rows.items()}
    assert {letter.upper() for letter in drawn["block 0 warp 0"]} == {"Z"}
    assert {letter.upper() for letter in drawn["block 0 warp 1"]} == {"Z"}  # the barrier is inside of it
    said = " ".join(text.split())
    assert "Z 'load' in a warp" in said and "SMs are aligned within" in said
    assert all(f"incomplete: ranges of warps: {line}" in said for line in TOLD)
    assert "tiles.records 12, tiles.overwritten 2" in said


@pytest.mark.parametrize(
    ("work", "first"),
    [([ran(16, 20, 0, 10, api=5)], 0), ([ran(40, 1, 2, 20)], -6000)],
)
def test_without_the_time_of_the_kernel_they_begin_with_the_graph_or_the_call(work, first):
    found, incomplete = chrome(traced(LANES, *work))
    wanted = {track: [(name, begin + first, *rest) for name, begin, *rest in ranges]
              for track, ranges in WANTED.items()}  # fmt: skip
    assert found == wanted
    placed = "placed where the call or the graph begins, because the time of the kernel is not known"
    assert f"ranges of warps: 1 launch {placed}" in incomplete


def test_streams_are_named_and_odd_records_ignored():
    made = [(10, LOAD, 0), (20, 7, 0), (30, LOAD + 1, 0)]
    lanes = [RingLane(0, 3, made), RingLane(1, 1 << 31, [(5, LOAD, 0)])]
    found, incomplete = chrome(traced(lanes[:1], stream=7, ring=3))
    assert found == {"block 0 warp 0, stream 0x7": [("load", 0, 20, None)]} and not incomplete
    assert chrome(traced(lanes, ring=3)) == ({}, ["ranges of warps: 1 launch not read"])


def test_lanes_of_a_warp_have_their_own_ranges():
    """Two parts of a diverged warp are in the same range at once. Then the first lane leaves, and another one has the
    end. The last lane's begin was overwritten.
    """
    lanes = [
        RingLane(0, 3, [(10, LOAD, 1), (40, LOAD + 1, 1), (50, BARRIER, 3)]),
        RingLane(0, 3, [(20, LOAD, 2), (30, LOAD + 1, 2), (70, BARRIER + 1, 0)]),
        RingLane(
            0, 3, [(15, LOAD, 4), (16, LOAD, 5), (17, LOAD + 1, 0), (18, LOAD, 6), (60, LOAD + 1, 0), (65, LOAD + 1, 0)]
        ),
    ]
    found, incomplete = chrome(traced(lanes))
    rows = {row for title, rows in found.items() for row in rows if title.startswith("block 0 warp 0")}
    assert rows == {("load", 0, 30, 1), ("load", 10, 10, 2), ("barrier", 40, 20, 3), ("load", 8, 42, 6)}
    assert incomplete == [
        "ranges of warps: 2 records overwritten by later ones: 'ring' in the probe file says how many are kept",
        "ranges of warps: 2 ranges not drawn, because no begin was recorded, or it was overwritten",
    ]


def test_a_range_of_a_block_may_end_in_another_warp():
    lanes = [RingLane(0, 3, [(10, LOAD, 1), (30, LOAD, 2)]), RingLane(0, 3, [(20, LOAD + 1, 0), (40, LOAD + 1, 0)])]
    found, incomplete = chrome(traced(lanes, level="block"))
    assert found == {"block 0": [("load", 0, 10, 1), ("load", 20, 10, 2)]} and not incomplete
