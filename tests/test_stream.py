"""Reading the wire format: valid and invalid streams. Nothing is lost silently."""

import io
import itertools
import os
import threading
import time

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError, TruncatedError
from gpt.stream import records, wire
from tests.tiers import examples, full

HEADER = wire.pack(wire.header("test", ["test", "-x"]))
END = wire.pack(records.make("end", records=0, status=0))


def sync(number):
    return wire.pack(records.make("sync", id=number))


def chunk(data, used=None):
    return wire.pack(records.make("chunk", used=len(data) if used is None else used, data=data))


def read(data):
    return list(wire.read_records(io.BytesIO(data), "in"))


def kinds(data):
    return [record["kind"] for record in read(data)]


class Dribble(io.RawIOBase):
    """A file that returns a few bytes at a time, like a pipe."""

    def __init__(self, data, sizes):
        self._data = memoryview(data)
        self._sizes = sizes

    def read(self, limit=-1):
        size = self._sizes.pop(0) if self._sizes else limit
        block, self._data = bytes(self._data[:size]), self._data[size:]
        return block


# Segments


def test_a_segment_reads_back_with_its_bytes():
    data = HEADER + sync(1) + sync(300) + END
    found = read(data)
    assert [r["kind"] for r in found] == ["header", "sync", "sync", "end"]
    assert [r.get("id") for r in found[1:3]] == [1, 300]
    assert b"".join(r.raw for r in found) == b"".join(map(wire.pack, found)) == data


def test_segments_follow_each_other_and_may_lack_their_end():
    assert kinds(HEADER + END + HEADER + END) == ["header", "end"] * 2
    assert kinds(HEADER + sync(1)) == ["header", "sync"]
    assert kinds(HEADER + sync(1) + HEADER + END) == ["header", "sync", "header", "end"]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (END, "in+0x0: end"),
        (sync(1) + HEADER, "in+0x0: sync"),
        (HEADER + END + sync(1), f"in+{len(HEADER + END):#x}: sync"),
        (HEADER + END + END, f"in+{len(HEADER + END):#x}: end"),
    ],
)
def test_records_outside_of_a_segment_are_refused(data, where):
    with pytest.raises(MalformedError, match=f"^{where.replace('+', '[+]')} record outside a segment"):
        read(data)


@pytest.mark.parametrize("data", [b"", bytes(100), chunk(b""), chunk(bytes(5000))])
def test_an_input_without_segment_is_empty(data):
    with pytest.raises(MalformedError, match=r"^in: empty"):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"hello, this is not a stream\n",
        b"\n",
        b'{"kind": "header"}\n',
        b"\xff\xfe",
        msgpack.packb([1]),
        msgpack.packb({}),
        msgpack.packb({"kind": 1}),
        msgpack.packb({"kind": b"header"}),
        msgpack.packb({1: "header"}),
        msgpack.packb("kind"),
        b"\xc1",
        b"\x81\xc1",
        b"\x81\x90\x01",  # an array as key
        b"\xcc\x00",  # 0, but not a zero byte
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_malformed_records_are_refused_at_their_offset(data, inside):
    with pytest.raises(MalformedError) as caught:
        read(HEADER * inside + data)
    assert not isinstance(caught.value, TruncatedError)
    assert caught.value.where == f"in+{len(HEADER) * inside:#x}"


# Versions


def header_with(**changes):
    return wire.pack({**msgpack.unpackb(HEADER), **changes})


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.99999999999999999999"])
def test_this_major_version_is_read_whatever_the_minor(version):
    assert read(header_with(version=version))[0]["version"] == version


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "1000000000000.0"])
def test_another_major_version_is_refused(version):
    with pytest.raises(MalformedError, match=r"this reads 1\.x"):
        read(HEADER + END + header_with(version=version))


@pytest.mark.parametrize(
    "version", ["", "1", "1.", ".1", "-1.0", "1.x", "1.0.0", "\u0661.0", "\udc80", 1, None, b"1.0"]
)
def test_malformed_versions_are_refused(version):
    with pytest.raises(MalformedError, match=r"MAJOR\.MINOR|header\.version is not of type str"):
        read(header_with(version=version))


def test_header_without_required_key_is_refused():
    header = msgpack.unpackb(HEADER)
    del header["via"]
    with pytest.raises(MalformedError, match="header without via"):
        read(msgpack.packb(header))


# Unknown kinds and keys pass


def test_unknown_kinds_and_keys_are_read():
    strange = {"kind": "x-mine", "id": -1, "deep": [{"a": None}, True]}
    found = read(header_with(more=1) + msgpack.packb(strange) + msgpack.packb({"kind": "sync", "id": 1, "why": "x"}))
    assert found[0]["more"] == 1
    assert found[1:] == [strange, {"kind": "sync", "id": 1, "why": "x"}]


@pytest.mark.parametrize(
    "value",
    [
        b"\xca\x3f\x80\x00\x00",  # float32
        b"\xcf" + bytes(7) + b"\x01",  # 1 in eight bytes
        b"\xd3" + b"\xff" * 8,  # -1 in eight bytes
        b"\xda\x00\x01a",  # text with a longer header than it needs
        b"\xa2\xff\xfe",  # text that is not UTF-8
        b"\xc7\x03\x05abc",  # ext
        b"\xd4\x7f\x00",  # fixext
        b"\xd6\xff\x00\x00\x00\x01",  # a time stamp
        b"\x81\x01\x02",  # a map with an integer for key
        b"\x82\xa1a\x01\xa1a\x02",  # a map with a key twice
        b"\xdf\x00\x00\x00\x00",  # an empty map with a long header
        b"\xc0",
    ],
)
def test_bytes_that_python_would_write_otherwise_stay(value):
    raw = b"\x83\xa4kind\xa4sync\xa2id\xcf" + bytes(8) + b"\xa1x" + value
    found = read(HEADER + raw + END)
    assert found[1].raw == wire.pack(found[1]) == raw


# Truncation

SAMPLE = b"".join(
    [
        HEADER,
        wire.pack(records.make("library", path="lib.so", size=300, machine="x86_64")),
        wire.pack(records.make("ptx", id=1, module="lib.so#0", arch="sm_90", kernels=["a", "b"], data=b"x" * 300)),
        END,
        HEADER,
        chunk(sync(1) + b"\0\0" + sync(70000) + bytes(50), used=40),
        msgpack.packb({"kind": "x-mine", "f": 1.5, "n": None, "e": msgpack.ExtType(3, b"abc"), "l": [1, [2]]}),
        END,
    ]
)


def cut_at_every_byte():
    """For each proper prefix of SAMPLE, yield its size, the end of its last complete record, and its records."""
    parts = [r.raw for r in read(SAMPLE)]
    edges = {0: 0}  # offset -> records before it
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(SAMPLE)
    for record in unpacker:
        edges[unpacker.tell()] = list(edges.values())[-1] + (2 if record["kind"] == "chunk" else 1)
    assert len(SAMPLE) in edges and edges[len(SAMPLE)] == len(parts) == 9
    for size in range(1, len(SAMPLE) + 1):
        last = max(edge for edge in edges if edge <= size)
        yield size, last, parts[: edges[last]]


@pytest.mark.parametrize(("bytewise", "step"), [(False, 1), (True, 11), full(True, 1)])
def test_cut_anywhere_gives_whole_records_or_an_error(bytewise, step):
    for size, last, expected in itertools.islice(cut_at_every_byte(), 0, None, step):
        file = Dribble(SAMPLE[:size], [1] * size) if bytewise else io.BytesIO(SAMPLE[:size])
        found = []
        try:
            found.extend(r.raw for r in wire.read_records(file, "in"))  # keeps the records before an error
        except TruncatedError as error:
            assert (error.where, error.fact) == (f"in+{last:#x}", f"truncated {size - last} bytes into a record")
            assert size > last
        else:
            assert size == last
        assert found == expected


@given(st.lists(st.integers(1, 80), max_size=60))
def test_how_the_input_arrives_makes_no_difference(sizes):
    found = list(wire.read_records(Dribble(SAMPLE, sizes), "in"))
    assert found == read(SAMPLE)
    assert [r.raw for r in found] == [r.raw for r in read(SAMPLE)]


def test_record_is_returned_as_soon_as_it_arrives():
    reader, writer = os.pipe()
    with open(reader, "rb") as file, open(writer, "wb", buffering=0) as pipe:
        found = wire.read_records(file, "pipe")
        for data in (HEADER, sync(1), sync(2) + sync(3)[:4]):
            pipe.write(data)
            timer = threading.Timer(10, pipe.close)  # a reader that waits for more then reaches the end
            timer.start()
            assert next(found).raw == data[: len(data) if data != sync(2) + sync(3)[:4] else len(sync(2))]
            timer.cancel()


def test_reading_a_growing_file_ends(tmp_path):
    path = tmp_path / "growing"
    path.write_bytes(HEADER + sync(0))
    with open(path, "rb") as file, open(path, "ab", buffering=0) as writer:
        found = []
        for record in wire.read_records(file, "growing"):
            found.append(record)
            writer.write(sync(len(found)) * wire.BLOCK)
            assert len(found) < 3
    assert [r["kind"] for r in found] == ["header", "sync"]


# Chunks


def test_chunks_are_replaced_by_what_they_hold():
    data = chunk(HEADER + sync(1)) + chunk(b"") + sync(2) + chunk(sync(3) + END)
    assert kinds(data) == ["header", "sync", "sync", "sync", "end"]
    assert b"".join(r.raw for r in read(data)) == HEADER + sync(1) + sync(2) + sync(3) + END


def test_chunk_is_padded_with_zeros_and_unused_code():
    data = bytes(3) + sync(1) + bytes(1) + sync(2) + bytes(500)
    assert kinds(HEADER + chunk(data) + END) == ["header", "sync", "sync", "end"]
    used = len(HEADER + sync(1))
    assert kinds(chunk(HEADER + sync(1) + b"\xff garbage", used)) == ["header", "sync"]
    assert kinds(chunk(HEADER + sync(1) + sync(2)[:3], used)) == ["header", "sync"]


def test_padding_may_stand_between_records_and_is_skipped_fast():
    zeros = bytes(24 << 20)
    start = time.process_time()
    found = read(HEADER + zeros + sync(0) + b"\0" + chunk(sync(1) + zeros + sync(2)) + zeros)
    assert [r.get("id") for r in found[1:]] == [0, 1, 2]
    assert time.process_time() - start < 4  # reading them one by one would take about 10 s
    with pytest.raises(MalformedError, match=f"^in[+]{len(HEADER) + len(zeros) + len(sync(0)):#x}: not a GPT"):
        read(HEADER + zeros + sync(0) + b"\x01")


@pytest.mark.parametrize("missing", range(1, len(sync(70000))))
def test_torn_record_does_not_swallow_the_next(missing):
    torn = sync(70000)[:-missing]
    for broken in (chunk(sync(1) + torn), chunk(sync(1) + torn + b"\x01" * missing, used=len(sync(1) + torn))):
        data = HEADER + broken + sync(2) + END
        at = data.index(sync(1)) + len(sync(1))
        with pytest.raises(TruncatedError) as caught:
            read(data)
        assert str(caught.value) == f"in+{at:#x}: truncated {len(torn)} bytes into a record"


def test_chunks_that_lie_are_refused():
    for data, fact in (
        (chunk(sync(1), used=len(sync(1)) + 1), "chunk of 15 bytes uses 16"),
        (chunk(sync(1), used=(1 << 64) - 1), "chunk of 15 bytes uses 18446744073709551615"),
        (msgpack.packb({"kind": "chunk", "data": b""}), "chunk without used"),
        (msgpack.packb({"kind": "chunk", "used": -1, "data": b""}), "chunk.used is not of type u64"),
        (msgpack.packb({"kind": "chunk", "used": 0, "data": ""}), "chunk.data is not of type bin"),
    ):
        with pytest.raises(MalformedError) as caught:
            read(HEADER + data)
        assert caught.value.fact == fact
        assert caught.value.where == f"in+{len(HEADER):#x}"


def test_a_chunk_in_a_chunk_is_refused():
    outer = chunk(sync(1) + chunk(sync(2)))
    with pytest.raises(MalformedError) as caught:
        read(HEADER + outer)
    where = len(HEADER + outer) - len(chunk(sync(2)))
    assert str(caught.value) == f"in+{where:#x}: chunk inside a chunk"


# Limits


@pytest.mark.full
def test_a_record_of_64_mib_is_read_and_a_larger_one_refused():
    empty = len(msgpack.packb({"kind": "x", "data": bytes(1 << 17)})) - (1 << 17)
    fits = msgpack.packb({"kind": "x", "data": bytes(records.MAX_RECORD - empty)})
    assert len(fits) == records.MAX_RECORD
    assert len(read(HEADER + fits + END)[1].raw) == records.MAX_RECORD
    over = msgpack.packb({"kind": "x", "data": bytes(records.MAX_RECORD - empty + 1)})
    with pytest.raises(MalformedError, match=f"in[+]{len(HEADER):#x}: record of over 67108864 bytes"):
        read(HEADER + over + END)


def test_wrong_length_allocates_no_memory():
    for claim in (b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(MalformedError):
            read(HEADER + b"\x82\xa4kind\xa1x\xa1y" + claim + bytes(1000))

    class Endless(io.RawIOBase):
        given = 0

        def read(self, limit=-1):
            self.given += limit
            return HEADER + b"\x82\xa4kind\xa1x\xa1y\xc6\x05\x00\x00\x00" if self.given == limit else b"\1" * limit

    endless = Endless()
    with pytest.raises(MalformedError, match=r"record of over|exceeds"):
        list(wire.read_records(endless, "in"))
    assert endless.given <= records.MAX_RECORD + (8 << 20)


def test_values_that_cannot_be_packed_are_errors():
    for value in (1 << 64, -(1 << 63) - 1, "\ud800", bytes(records.MAX_RECORD)):
        with pytest.raises(MalformedError):
            wire.pack({"kind": "x", "value": value})
    deep = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(MalformedError):
        wire.pack({"kind": "x", "value": deep})


# Anything at all


def parses_or_refuses(data):
    begun = time.process_time()
    try:
        found = read(data)
    except GptError as error:
        assert error.status == 3
        assert error.fact and "\n" not in error.where
    else:
        assert found[0]["kind"] == "header"
        assert [r.raw for r in read(b"".join(r.raw for r in found))] == [r.raw for r in found]
    assert time.process_time() - begun < 5


@settings(max_examples=examples(500))
@given(st.binary(max_size=300))
@example(b"\x82\xa4kind\xa1x\xa1y" + b"\x91" * 3000)
@example(b"\x82\xa4kind\xa1x\xa1y" + b"\xdd\x00\x10\x00\x00" * 1100)
@example(b"\x82\xa4kind\xa1x\xa1y" + b"\x91" * 600 + b"\x01")
@example(b"\x82\xa4kind\xa1x\xd6\xff\xff\xff\xff\xff\x00")
@example(b"\x82\xa4kind\xa1x\xc7\x03\xff\x00\x00\x00\x00")
def test_any_bytes_are_read_or_refused(data):
    parses_or_refuses(data)
    parses_or_refuses(HEADER + data)
    parses_or_refuses(HEADER + chunk(data))


@settings(max_examples=examples(800))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "insert", "delete", "copy"]),
            st.integers(0, len(SAMPLE) - 1),
            st.integers(0, len(SAMPLE) - 1),
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xc6\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdd\x00\x10\x00\x00", b"\0" * 9]),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_stream_is_read_or_refused(changes):
    data = bytearray(SAMPLE)
    for change, at, other, new in changes:
        match change:
            case "set":
                data[at : at + len(new)] = new
            case "insert":
                data[at:at] = new
            case "delete":
                del data[at : at + other % 40]
            case "copy":
                data[at:at] = data[other : other + 100]
    parses_or_refuses(bytes(data))
