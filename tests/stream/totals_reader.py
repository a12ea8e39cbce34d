"""Read the totals, histograms and tables of a trace. Written from gpt-stream(5), PROBE BUFFERS, alone: it imports
msgpack, zstandard, and the tests' own reader of columns.
"""

import struct
from pathlib import Path

import msgpack
import zstandard

from tests.trace.columns import read_columns

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
           "f16": "e", "f32": "f", "f64": "d"}  # fmt: skip


def records(data):
    """Yield the records of a stream; a chunk is replaced by the records in it, and padding is skipped."""
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0)
    unpacker.feed(data)
    for record in unpacker:
        if record and record["kind"] == "chunk":
            yield from records(record["data"][: record["used"]])
        elif record:
            yield record


def unit_bytes(record):
    """Return the bytes per unit of an array or a total."""
    return record.get("head", 8) + record["capacity"] * record["stride"] if record["capacity"] else 8


def whole(parts, unit, folder):
    """Put the bytes of a buffer together from the records that have its parts."""
    buffer = bytearray(parts[0]["size"])
    for part in parts:
        at, length = part.get("at", 0), part.get("length", part["size"])
        written = part["units"] * (8 + unit) if "units" in part else length
        data = part.get("data")
        if data is None:
            size = part.get("packed", written)
            data = (folder / part["path"]).read_bytes()[part["offset"] : part["offset"] + size]
        codec = part.get("codec", "")
        if "zstd" in codec:
            data = zstandard.ZstdDecompressor().decompress(data)
        if "columns" in codec:
            data = read_columns(data, part["row"], written)
        if "units" not in part:
            buffer[at : at + length] = data
            continue
        for start in range(0, len(data), 8 + unit):
            (number,) = struct.unpack_from("<Q", data, start)
            buffer[number * unit : (number + 1) * unit] = data[start + 8 : start + 8 + unit]
    return bytes(buffer)


def read_unit(record, data):
    """Return a unit's count (None if it has no count) and its fields by name, or None if the unit saved nothing."""
    head = record.get("head", 8)
    count = struct.unpack_from("<Q", data)[0] if head else None
    if not any(data):
        return None
    fields = {}
    for field in record["fields"]:
        name, bits, sign = field["name"], int(field["type"][1:]), field["type"][0] == "i"
        (value,) = struct.unpack_from("<" + FORMATS[field["type"]], data, head + field["offset"])
        inverted = 1 << bits - 1 if sign else 0
        if name in record.get("min", ()):
            inverted = (1 << bits) - 1 ^ inverted
        if name in record.get("min", ()) or name in record.get("max", ()):
            value = (value % (1 << bits)) ^ inverted
            value -= 1 << bits if sign and value >> bits - 1 else 0
        fields[name] = value
    return count, fields


def read_bins(record, data):
    """Return the nonempty bins of a histogram as (least value, first value of the next bin, count)."""
    counts = struct.unpack(f"<{len(data) // 8}Q", data)
    bins = record["stride"] // 8
    sums = [sum(counts[number::bins]) for number in range(bins)]
    if "step" in record:
        starts = [0, *(record["low"] + record["step"] * number for number in range(bins - 1))]
    else:
        starts = [0, *(2**number for number in range(bins - 1))]
    return [(low, high, count) for low, high, count in zip(starts, [*starts[1:], None], sums, strict=True) if count]


def read_table(record, data):
    """Return a table's rows from all copies: by key, the number of records and the other fields; and how many were
    dropped.
    """
    head, stride, capacity = record.get("head", 8), record["stride"], record["capacity"]
    unit = head + capacity * stride
    found, dropped = {}, 0
    for start in range(0, len(data), unit):
        dropped += struct.unpack_from("<Q", data, start)[0]
        for at in range(start + head, start + unit, stride):
            (count,) = struct.unpack_from("<Q", data, at)
            key, used = [], []
            for name in record["key"]:
                (field,) = (field for field in record["fields"] if field["name"] == name)
                bits, place = int(field["type"][1:]), at + field["offset"]
                words = [struct.unpack_from("<II", data, place + 8 * number) for number in range(bits // 32)]
                value = sum(low << 32 * number for number, (low, _) in enumerate(words))
                key.append(value - (1 << bits) if field["type"][0] == "i" and value >> bits - 1 else value)
                used += [mark for _, mark in words]
            assert set(used) in ({0}, {1}), "a slot is taken as a whole"
            if not used[0]:
                assert not any(data[at : at + stride])
                continue
            others = [field for field in record["fields"] if field["name"] not in record["key"]]
            fields = read_unit(record | {"head": 0, "fields": others}, data[at : at + stride])[1]
            old_count, old = found.get(tuple(key), (0, {}))
            for field in others if old else ():
                name, one, other = field["name"], fields[field["name"]], old[field["name"]]
                least, most = name in record.get("min", ()), name in record.get("max", ())
                fields[name] = min(one, other) if least else max(one, other) if most else one + other
            found[tuple(key)] = old_count + count, fields
    return found, dropped


def read_sums(record, data):
    """Return the sums of a buffer that was reduced: records, dropped, the sum of counts, and each field's sum, least
    and greatest value, and how many values need how many bits.
    """
    fields, at = {}, 24
    for field in record["fields"] if record["capacity"] else ():
        kind = {"u": "Q", "i": "q", "f": "d"}[field["type"][0]]
        sum_, least, greatest = struct.unpack_from("<3" + kind, data, at)
        first, number = struct.unpack_from("<2Q", data, at + 24)
        counts = struct.unpack_from(f"<{number}Q", data, at + 40)
        assert not counts or (counts[0] and counts[-1])
        bits = {first + place: count for place, count in enumerate(counts) if count}
        fields[field["name"]] = sum_, least, greatest, bits
        at += 40 + 8 * number
    assert at == len(data)
    return *struct.unpack_from("<3Q", data), fields


def read_reduced(path):
    """For each map by name, return the launches of which only sums were kept: the size of the buffer and its sums or,
    for a histogram, its bins.
    """
    path, found, maps = Path(path), {}, {}
    for record in records(path.read_bytes()):
        if record["kind"] == "map":
            maps[record["id"]] = record
        if record["kind"] == "buffer" and "reduced" in record:
            of = maps[record["map"]]
            assert of["type"] != "table" and "at" not in record and "units" not in record
            data = whole([record], 0, path.parent)
            read = read_bins if of["type"] == "histogram" else read_sums
            found.setdefault(of["name"], {})[record["launch"]] = record["reduced"], read(of, data)
    return found


def read_maps(path):
    """Return, by map name and launch, the units of a total, the bins of a histogram, or the rows of a table with the
    number of values that didn't fit.
    """
    path, found, maps, parts = Path(path), {}, {}, {}
    for record in records(path.read_bytes()):
        if record["kind"] == "map":
            maps[record["id"]] = record
        if record["kind"] == "buffer" and "reduced" not in record:
            parts.setdefault((record["launch"], record["map"]), []).append(record)
    for (launch, number), several in sorted(parts.items()):
        record = maps[number]
        if record["type"] == "total":
            unit = unit_bytes(record)
            data = whole(several, unit, path.parent)
            units = [read_unit(record, data[at : at + unit]) for at in range(0, len(data), unit)]
            found.setdefault(record["name"], {})[launch] = units
        if record["type"] == "histogram":
            data = whole(several, record["stride"], path.parent)
            assert len(data) == record["copies"] * record["stride"]
            found.setdefault(record["name"], {})[launch] = read_bins(record, data)
        if record["type"] == "table":
            unit = unit_bytes(record)
            data = whole(several, unit, path.parent)
            assert len(data) == record["copies"] * unit
            found.setdefault(record["name"], {})[launch] = read_table(record, data)
    return found
