"""A stage for machine code, for gpt-hook's pipeline: `python toy_stage.py`.

It replaces an element that contains a cubin by the same cubin with one more parameter, for the address of a map to
which nothing is saved. Kernels called `other` are refused. gpt-probe(5), BACK ENDS, describes the input of such a
stage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import KPARAM, KPARAM_INFO, SIZE, SIZE_SHIFT, add_parameter
from gpt.formats.nvinfo import iter_attributes
from gpt.stream import records
from gpt.stream.stage import ELEMENT, Stage

FIELDS = [{"name": "value", "type": "u64", "offset": 0}]


class Toy:
    """One run of the stage, which numbers modules and maps."""

    def __init__(self) -> None:
        self.count = self.module = 0

    def handle(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the records that replace an element. Other records are unchanged."""
        if record["kind"] == "module":
            self.module = record["id"]
        if record["kind"] != "element" or "data" not in record:
            yield record
            return
        (name,) = record["only"]
        if name == "other":
            yield records.make("refused", module=self.module, name=name, code="toy", detail="it is another one")
            return
        number, self.count = self.count, self.count + 1
        cubin = CubinEditor(record["data"])
        kernel = KernelEditor(cubin, name)
        params = sorted(iter_params(kernel))
        added = add_parameter(kernel)
        where = {"module": f"{record['library']}#{record['index']}", "arch": record["arch"]}
        yield records.make("cubin", id=number, kernels=[name], data=cubin.build(), **where)
        yield records.make(
            "map", id=number, name="toy", type="array", level="warp", capacity=1, stride=8, fields=FIELDS
        )
        yield records.make(
            "kernel",
            id=number,
            name=name,
            params=[{"offset": offset, "size": size} for offset, size in params],
            added=[{"offset": added.offset, "size": SIZE, "map": number}],
            maps=[number],
        )


def iter_params(kernel: KernelEditor) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each parameter."""
    for entry in iter_attributes(bytes(kernel.info)):
        if entry.kind == KPARAM_INFO:
            _, _, offset, size = KPARAM.unpack(entry.payload)
            yield offset, size >> SIZE_SHIFT


if __name__ == "__main__":
    sys.exit(Stage("toy").filter(Toy().handle, wants=ELEMENT))
