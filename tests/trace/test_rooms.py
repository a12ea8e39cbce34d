"""Logs that consist of rooms: a reader finds all entries, and refuses nonsense."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.stream import rooms
from gpt.trace.buffers import MapLayout
from gpt.trace.rooms import Entries, pack_arenas
from tests.tiers import examples
from tests.trace import forge
from tests.trace.logs import HEAD, RingLane, Room, Saved, expected, write_log, write_ring

DMAT = {"address": "u64", "clock": "u64", "bytes": "u32", "sm": "u32"}
WAYS = ["lane", "clock", "equal", "sm"]
TYPES, KINDS = ("u8", "u16", "u32", "u64"), ("shared", "lane", "equal", "each")


def layout_of(fields, stored, level="thread", capacity=1 << 20):
    return MapLayout(forge.probe_map("m", type_="log", level=level, capacity=capacity, **fields) | {"stored": stored})


def rows_of(saved):
    return [(int(unit), *row.item()) for unit, row in zip(saved.units, saved.slots, strict=True)]


def dmat(clock, addresses, sm=4, size=4):
    return Saved(clock, {lane: (address, clock, size, sm) for lane, address in addresses.items()})


def test_a_coalesced_access_takes_a_byte_per_lane():
    saved = [dmat(100 + n, {lane: 0x7F0000000000 + 4 * lane for lane in range(32)}) for n in range(3)]
    data = write_log(DMAT.values(), WAYS, [[Room(64, 4, saved)]])
    assert len(data) == HEAD + 32 + 3 * 32
    found = layout_of(DMAT, WAYS).read(data, 1, 96)
    assert rows_of(found) == expected(DMAT.values(), [[Room(64, 4, saved)]], True)
    assert found.counts.tolist() == [96] and not found.dropped


@pytest.mark.parametrize(
    ("addresses", "columns"),
    [([8, 8, 8], 0), ([100, 96, 92], 0), ([5, 9, 1], 1), ([1 << 40, 5, 1 << 63], 2), ([0, (1 << 64) - 4, 9], 1)],
)
def test_addresses_take_as_many_bits_as_they_need(addresses, columns):
    """Test equal addresses, equal distances up and down, and distances of 32 and 64 bits."""
    saved = dmat(7, dict(zip((3, 17, 31), addresses, strict=True)))
    data = write_log(DMAT.values(), WAYS, [[Room(32, 4, [saved])]])
    assert len(data) == HEAD + 32 + -(-(32 + 12 * columns) // 32) * 32
    assert [row[:2] for row in rows_of(layout_of(DMAT, WAYS).read(data, 1, 96))] == [
        (32 + lane, address) for lane, address in zip((3, 17, 31), addresses, strict=True)
    ]


@pytest.mark.parametrize(
    ("address", "size"),
    [
        (lambda lane: 0x7F00 + lane // 4 * 1024 + lane % 4 * 16, 64),  # 8 rows of 4
        (lambda lane: 1 << 40 ^ (lane ^ lane >> 3) * 8, 160),  # swizzled
        (lambda lane: (1 << 33) - lane // 16 * 4096 + lane % 16 * 4, 64),
        (lambda lane: lane // 2 << 31, 288),
    ],
)
def test_a_tile_takes_a_term_for_each_bit(address, size):
    saved = [dmat(100, {lane: address(lane) for lane in range(32)})]
    data = write_log(DMAT.values(), WAYS, [[Room(64, 4, saved)]])
    assert len(data) == HEAD + 32 + size
    assert rows_of(layout_of(DMAT, WAYS).read(data, 1, 96)) == expected(DMAT.values(), [[Room(64, 4, saved)]], True)


def test_only_a_full_warp_has_a_tile():
    data = bytearray(write_log(DMAT.values(), WAYS, [[Room(0, 4, [dmat(9, {1: 5, 2: 9, 30: 1})], 32)]]))
    data[HEAD + 32 + 6] |= 3
    with pytest.raises(MalformedError):
        layout_of(DMAT, WAYS).read(bytes(data), 1, 64)


def test_the_entries_of_a_warp_are_in_the_order_of_its_clocks():
    """Diverged lanes have rooms of their own, in any arena."""
    arenas = [
        [Room(32, 1, [dmat(50, {4: 9}, 1), dmat(70, {4: 8, 5: 7}, 1)], 64), Room(0, 2, [dmat(90, {0: 3}, 2)])],
        [],
        [Room(32, 1, [dmat(60, {9: 6}, 1)])],
    ]
    data = write_log(DMAT.values(), WAYS, arenas, [2, 0, 3])
    found = layout_of(DMAT, WAYS).read(data, 1, 64)
    assert [row[:3] for row in rows_of(found)] == [
        (0, 3, 90), (36, 9, 50), (41, 6, 60), (36, 8, 70), (37, 7, 70)
    ]  # fmt: skip
    assert found.dropped == 5 and found.counts.tolist() == [10]


def test_records_may_be_counted_only():
    found = layout_of(DMAT, WAYS, capacity=0).read(write_log([], [], [], [7, 2]), 1, 32)
    assert found.counts.tolist() == [9] == [found.dropped] and not len(found.slots)


def logs():
    """Return a strategy for logs: any fields, stored in any way, with values of any lanes."""

    def with_values(fields):
        ways = {"clock": "u64", "sm": "u32"}
        types = [ways.get(way, type_ if way != "equal" or type_ != "u64" else "u32") for type_, way in fields]
        stored = [way for _, way in fields]
        some = st.sampled_from([0, 1, 4, 200]) | st.integers(0, (1 << 64) - 1)
        lanes = st.sets(st.integers(0, 31), min_size=1)

        def saved(clock, sm, lanes, values, step):
            rows = {}
            for rank, lane in enumerate(sorted(lanes)):
                row = [(value + (rank * step if way not in ("shared",) else 0)) % (1 << 8 * rooms_size(type_))
                       for value, type_, way in zip(values, types, stored, strict=True)]  # fmt: skip
                rows[lane] = [{"clock": clock, "sm": sm}.get(way, one) for way, one in zip(stored, row, strict=True)]
            return Saved(clock, rows)

        def room(sm):
            values = st.lists(some, min_size=len(types), max_size=len(types))
            step = st.integers(-9, 9) | st.just(1 << 33)
            one = st.builds(saved, st.integers(0, 1 << 50), st.just(sm), lanes, values, step)
            of_lane = st.lists(one, min_size=1, max_size=4)
            return st.builds(
                Room,
                st.integers(0, 9).map(lambda n: 32 * n),
                st.just(sm),
                of_lane,
                st.sampled_from([0, 96]),
                time=st.integers(0, 1 << 63),
            )

        arenas = st.lists(st.lists(st.integers(0, 200).flatmap(room), max_size=3), max_size=4)
        return st.tuples(st.just(types), st.just(stored), arenas)

    fields = st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from((*KINDS, "clock", "sm"))), min_size=1, max_size=6
    )
    return fields.filter(lambda some: sum(way in rooms.FORMED for _, way in some) <= 4).flatmap(with_values)


def rooms_size(type_):
    return {"u8": 1, "u16": 2, "u32": 4, "u64": 8}[type_]


@settings(max_examples=examples(150), deadline=None)
@given(logs(), st.booleans(), st.integers(0, 40), st.integers(0, 40))
def test_logs_round_trip(log, per_lane, start, more):
    types, stored, arenas = log
    data = write_log(types, stored, arenas)
    layout = layout_of({f"f{n}": type_ for n, type_ in enumerate(types)}, stored, "thread" if per_lane else "warp")
    wanted = sorted(expected(types, arenas, per_lane))
    assert sorted(rows_of(layout.read(data, 3, 64))) == wanted
    entries = Entries(np.frombuffer(data, np.uint8), layout.rooms)
    assert len(entries) == len(wanted)
    _, every = entries.read(layout._slot, per_lane)
    _, some = entries.read(layout._slot, per_lane, start, start + more)
    assert some.tolist() == every[start : start + more].tolist()


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_read(data):
    """No size, form or mask leads outside of the bytes."""
    saved = [dmat(9, {1: 5, 2: 99, 30: 1 << 50}), dmat(10, {n: 64 + 4 * n for n in range(32)})]
    log = bytearray(write_log(DMAT.values(), WAYS, [[Room(0, 4, saved, 32)], [Room(32, 4, saved)]]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log) // 4 - 1)) * 4
        log[at : at + 4] = data.draw(st.sampled_from([0, 1, 7, 1 << 31, (1 << 32) - 1]) | st.integers(0, 400)).to_bytes(
            4, "little"
        )
    try:
        found = layout_of(DMAT, WAYS).read(bytes(log), 1, 64)
    except MalformedError:
        return
    assert len(found.slots) <= 32 * len(log) // 32


@pytest.mark.parametrize(
    "stored", [["lane"], ["lane", "clock", "clock", "sm"], ["lane", "clock", "equal", "clock"], ["what", *WAYS[1:]]]
)
def test_a_nonsensical_map_is_refused(stored):
    with pytest.raises(MalformedError):
        layout_of(DMAT, stored)


def test_arenas_of_a_device_are_put_together():
    """Rooms beyond an arena's end are missing, and unused arenas are empty."""
    number = rooms.make_number(32)
    assert (rooms.count_arenas(1), rooms.count_arenas(32), rooms.count_arenas(1 << 40)) == (1, 4, 16)
    size = rooms.arena_bytes(64, number)
    assert size == 16 * 32 and rooms.arena_bytes(64, number | 2) == 4 * size and rooms.arena_bytes(64, 0) == 64 * 32
    one = write_log(DMAT.values(), WAYS, [[Room(0, 4, [dmat(3, {1: 2})])]])
    device = bytearray(HEAD + 4 * size)
    for arena in (1, 3):
        device[HEAD + arena * size : HEAD + arena * size + 64] = one[HEAD : HEAD + 64]
    for arena, (claimed, dropped) in {1: (64, 0), 3: (size + 96, 5)}.items():
        device[128 * arena : 128 * arena + 16] = np.array([claimed, dropped], "<u8").tobytes()
    found = layout_of(DMAT, WAYS, capacity=64).read(pack_arenas(bytes(device), 64, number), 32, 32)
    assert [row[:2] for row in rows_of(found)] == [(1, 2)] * 2 and found.dropped == 5


RANGES = {"clock": "u64", "sm": "u32", "range": "u32", "number": "u32"}
RING_WAYS = ["clock", "sm", "shared", "shared"]


def ring_of(ring, level="warp"):
    told = forge.probe_map("m", type_="log", level=level, capacity=1 << 20, **RANGES)
    return MapLayout(told | {"stored": RING_WAYS, "ring": ring, "ranges": ["x"]})


@pytest.mark.parametrize("made", [1, 4, 5, 6, 7, 9, 10, 11, 200])
def test_a_ring_keeps_the_last_records_of_each_lane(made):
    """Two lanes of one warp and one lane of another saved different numbers of records."""
    of = [[(100 + 3 * n, n % 2, n) for n in range(count)] for count in (made, 3, made + 1)]
    lanes = [RingLane(1, 5, of[0], 7, 2), RingLane(1, 5, of[1]), RingLane(2, 6, of[2], 9)]
    found = ring_of(5).read(write_ring(5, [lanes[:2], lanes[2:]]), 1, 96)
    wanted = [(lane.unit, clock, lane.sm, *rest) for lane in lanes for clock, *rest in lane.made[-5:]]
    assert sorted(rows_of(found)) == sorted(wanted)
    assert found.overwritten == sum(max(0, len(each) - 5) for each in of)
    assert found.counts.tolist() == [sum(map(len, of))] and not found.dropped
    pairs = [(lane.sm, each[at][0], lane.offset + lane.rate * each[at][0])
             for lane, each in zip(lanes, of, strict=True) for at in {0, (len(each) - 1) // 5 * 5}]  # fmt: skip
    assert sorted(zip(*(column.tolist() for column in found.pairs), strict=True)) == sorted(pairs)


def test_rings_that_contradict_themselves_are_refused():
    data = bytearray(write_ring(2, [[RingLane(0, 0, [(9, 0, 0), (10, 1, 0), (11, 0, 0)])]]))
    assert ring_of(2).read(bytes(data), 1, 32).overwritten == 1
    data[16] = 0  # nothing was overwritten, but a clock falls
    with pytest.raises(MalformedError, match="0 overwritten records, of which 1 are still there"):
        ring_of(2).read(bytes(data), 1, 32)
    with pytest.raises(MalformedError, match="a ring of records that differ in size"):
        MapLayout(forge.probe_map("m", type_="log", capacity=9, **DMAT) | {"stored": WAYS, "ring": 2})
    for ring in (0, 65537, 1 << 63):
        with pytest.raises(MalformedError, match=f"a ring of {ring} records"):
            ring_of(ring)
