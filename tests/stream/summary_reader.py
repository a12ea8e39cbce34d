"""Sum up a trace like `gpt-analyze summary`. It's written from gpt-stream(5) alone, and imports only msgpack."""

import struct
from collections import Counter, defaultdict
from pathlib import Path

import msgpack

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q"}


def read(data):
    """Yield the records of a stream; a chunk is replaced by the records in it, and padding is skipped."""
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0)
    unpacker.feed(data)
    for record in unpacker:
        if record and record["kind"] == "chunk":
            yield from read(record["data"][: record["used"]])
        elif record:
            yield record


def rows(records):
    """Yield the rows of records as dictionaries, without padding and rows that were never finished."""
    for record in records:
        first = {"calls": "start", "gpu_times": "begin"}.get(record["kind"], "count")
        for at in range(0, len(record["rows"]), record["stride"]):
            row = {f["name"]: struct.unpack_from("<" + FORMATS[f["type"]], record["rows"], at + f["offset"])[0]
                   for f in record["fields"]}  # fmt: skip
            if row[first]:
                yield {"thread": record.get("thread"), **row}


def summarize(path, functions, copies, kernels, processes):
    """Add the sums of a trace and of its children, each a Counter by name."""
    found = defaultdict(list)
    for record in read(path.read_bytes()):
        found[record["kind"]].append(record)
    (header,) = found["header"]
    apis = {record["id"]: (record["type"], record["op"], record["name"]) for record in found["api"]}
    names = {record["id"]: record["name"] for record in found["function"]}
    began, zero, rate = header["monotonic"], header.get("tsc", header["monotonic"]), 1e9 / header.get("tsc_hz", 1e9)
    far = max(found["clock"], key=lambda clock: clock["monotonic"], default=header)
    if "tsc_hz" in header and far["monotonic"] - began > 100_000_000:
        rate = (far["monotonic"] - began) / (far["tsc"] - zero)

    def ns(ticks):
        return max(1, round(ticks * rate)) if ticks else 0

    last, calls = began, list(rows(found["calls"]))
    for row in calls:
        (type_, op, _), took, good = apis[row["api"]], ns(row["duration"]), row["duration"] and row["result"] == 0
        last = max(last, began + int((row["start"] - zero) * rate) + took)
        failed = row["duration"] and row["result"] not in (0, 600)
        functions[apis[row["api"]]] += Counter(calls=1, total=took, failed=bool(failed))
        if type_ in ("memcpy", "memset") and good and "bytes" in row:
            copies[op] += Counter(calls=1, bytes=row["bytes"], total=took)
        if type_ == "capture" and row.get("function"):
            kernels[names[row["function"]]]["captured"] += 1
        if (type_, op) == ("graph", "launch") and good:
            meant = [one for one in found["graph"] if one["exec"] == row["object"] and one["at"] <= row["start"]]
            graph = max(meant, key=lambda graph: graph["at"])
            for function, launches in zip(graph["functions"], graph["launches"], strict=True):
                kernels[names[function]]["launches"] += launches
            for one in graph.get("operations", ()):
                if one["type"] in ("memcpy", "memset"):
                    copies[one["op"]] += Counter(in_graphs=one["nodes"], bytes=one["bytes"])
    for row in rows(found["counts"]):
        functions[apis[row["api"]]] += Counter(calls=row["count"], counted=row["count"])
    for row in rows(found["launches"]):
        kernels[names[row["function"]]]["launches"] += row["count"]
    for row in rows(found["gpu_times"]):
        type_, op, _ = apis[row["api"]]
        if row["function"]:
            kernels[names[row["function"]]].update(gpu_calls=1, gpu_total=ns(row["duration"]))
        elif type_ in ("memcpy", "memset"):
            copies[op].update(gpu_calls=1, gpu_total=ns(row["duration"]))
    processes[header["pid"]] = {
        "threads": len({record["thread"] for record in found["calls"]}),
        "calls": len(calls) + sum(row["count"] for row in rows(found["counts"])),
        "duration": last - began,
        "status": found["end"][0]["status"] if found["end"] else None,
    }
    for child in found["child"]:
        if "path" in child:
            summarize(path.parent / child["path"], functions, copies, kernels, processes)


def summary(path):
    """Return the sums of functions, copies, kernels and processes."""
    functions, copies, kernels, processes = (defaultdict(Counter) for _ in range(4))
    summarize(Path(path), functions, copies, kernels, processes)
    return functions, copies, kernels, processes
