"""Read NVTX ranges from traces."""

from __future__ import annotations

from tests.runtime import hooked
from tests.runtime.hooked import Trace

ABI = hooked.ROOT / "runtime" / "abi" / "nvtx.h"


def told(trace: Trace) -> list[tuple]:
    """Return the records in order, each as type (or end), domain and name. An end has the name of its range."""
    found, names = [], {}
    for record in trace.records:
        if record["kind"] == "range":
            found.append((record["type"], record.get("domain"), record.get("name")))
            names[record.get("id")] = record
        elif record["kind"] == "range_end":
            begun = names[record["id"]]
            assert begun["start"] <= record["end"]
            found.append(("end", begun.get("domain"), begun.get("name")))
    return found
