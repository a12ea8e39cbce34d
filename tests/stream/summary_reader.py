"""Sum up a trace like 'gpt-analyze summary'. Written from gpt-stream(5) alone: it imports nothing but msgpack."""

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


def rows(record):
    """Yield the rows of a record as dictionaries, without rows that were never finished and padding."""
    first = {"calls": "start", "gpu_times": "begin"}.get(record["kind"], "count")
    for at in range(0, len(record["rows"]), record["stride"]):
        row = {f["name"]: struct.unpack_from("<" + FORMATS[f["type"]], record["rows"], at + f["offset"])[0]
               for f in record["fields"]}  # fmt: skip
        if row[first]:
            yield row


def summarize(path, functions, copies, kernels, processes):
    """Add the sums of a trace and of those of its children, each a Counter by name."""
    by_kind = defaultdict(list)
    for record in read(path.read_bytes()):
        by_kind[record["kind"]].append(record)
    (header,) = by_kind["header"]
    apis = {record["id"]: record for record in by_kind["api"]}
    names = {record["id"]: record["name"] for record in by_kind["function"]}
    zero, rate = header.get("tsc", header["monotonic"]), 1e9 / header.get("tsc_hz", 1e9)
    far = max(by_kind["clock"], key=lambda clock: clock["monotonic"], default=header)
    if "tsc_hz" in header and far["monotonic"] - header["monotonic"] > 100_000_000:
        rate = (far["monotonic"] - header["monotonic"]) / (far["tsc"] - zero)

    def ns(ticks):
        return max(1, round(ticks * rate)) if ticks else 0

    last, threads, found = header["monotonic"], set(), Counter(calls=0)
    for record in by_kind["calls"]:
        threads.add(record["thread"])
        for row in rows(record):
            api, took, good = apis[row["api"]], ns(row["duration"]), row["duration"] and row["result"] == 0
            last = max(last, header["monotonic"] + int((row["start"] - zero) * rate) + took)
            found["calls"] += 1
            failed = row["duration"] and row["result"] not in (0, 600)
            functions[api["type"], api["op"], api["name"]] += Counter(calls=1, total=took, failed=bool(failed))
            if api["type"] in ("memcpy", "memset") and good and "bytes" in row:
                copies[api["op"]] += Counter(calls=1, bytes=row["bytes"], total=took)
            if api["type"] == "capture" and row.get("function"):
                kernels[names[row["function"]]]["captured"] += 1
            if (api["type"], api["op"]) == ("graph", "launch") and good:
                meant = [g for g in by_kind["graph"] if g["exec"] == row["object"] and g["at"] <= row["start"]]
                graph = max(meant, key=lambda graph: graph["at"])
                for function, launches in zip(graph["functions"], graph["launches"], strict=True):
                    kernels[names[function]]["launches"] += launches
                for one in graph.get("operations", ()):
                    if one["type"] in ("memcpy", "memset"):
                        copies[one["op"]] += Counter(in_graphs=one["nodes"], bytes=one["bytes"])
    for record in by_kind["counts"]:
        for row in rows(record):
            api = apis[row["api"]]
            found["calls"] += row["count"]
            functions[api["type"], api["op"], api["name"]] += Counter(calls=row["count"], counted=row["count"])
    for record in by_kind["launches"]:
        for row in rows(record):
            kernels[names[row["function"]]]["launches"] += row["count"]
    for record in by_kind["gpu_times"]:
        for row in rows(record):
            api = apis[row["api"]]
            if row["function"]:
                kernels[names[row["function"]]].update(gpu_calls=1, gpu_total=ns(row["duration"]))
            elif api["type"] in ("memcpy", "memset"):
                copies[api["op"]].update(gpu_calls=1, gpu_total=ns(row["duration"]))
    processes[header["pid"]] = dict(found, threads=len(threads), duration=last - header["monotonic"],
                                    status=by_kind["end"][0]["status"] if by_kind["end"] else None)  # fmt: skip
    for child in by_kind["child"]:
        if "path" in child:
            summarize(path.parent / child["path"], functions, copies, kernels, processes)


def summary(path):
    """Return the sums of functions, copies, kernels and processes."""
    functions, copies, kernels, processes = (defaultdict(Counter) for _ in range(4))
    summarize(Path(path), functions, copies, kernels, processes)
    return functions, copies, kernels, processes
