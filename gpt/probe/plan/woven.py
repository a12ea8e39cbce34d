"""A kernel into which a back end has woven probes, and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpt.formats.params import Param
from gpt.probe.plan.maps import PlacedMap
from gpt.stream import records


def addresses_after(params: list[Param], count: int) -> list[Param]:
    """Return `count` more parameters, for addresses, placed after these."""
    end = params[-1].offset + params[-1].size if params else 0
    first = -(-end // 8) * 8
    return [Param(first + 8 * number, 8, "u64") for number in range(count)]


class Matched(NamedTuple):
    """A position of a probe in a kernel: how many places match it, and in how many of them the probe was woven in."""

    probe: str
    position: str
    matched: int
    woven: int


class SharedVariable(NamedTuple):
    """A variable that the kernel shares with the program's module. `offset` is where its address is in the table.

    Variables in constant memory have no offset. `copy` says when they're copied: always, or once their address has been
    taken. `size` is in bytes; it's None if the module doesn't say.
    """

    name: str
    space: str
    size: int | None
    offset: int | None
    copy: str | None


@dataclass(frozen=True)
class Woven:
    """A kernel with probes. `added` are the parameters for the addresses of the buffers, in the order of `maps`.

    `original` is the module without probes. `cluster` is the size of a cluster in blocks (x, y, z), if a launch's grid
    counts clusters. `variables` are shared with the program's module; the table of their
    addresses, if there's one, has the name `table`. A back end that assembles code sets `needs`.
    """

    kernel: str
    data: bytes
    original: bytes
    params: list[Param]
    added: list[Param]
    maps: list[PlacedMap]
    sites: list[Matched]
    misfits: list[str]
    cluster: list[int] | None = None
    variables: Sequence[SharedVariable] = ()
    table: str | None = None
    room: int = 0  # bytes of shared memory for its histograms, if the launch adds them
    needs: Mapping[str, int] = field(default_factory=dict)  # resources, as in the `kernel` record

    def make_kernel(self, id_: int, first: int, verified: bool) -> dict[str, Any]:
        """Return the record of the kernel. `id_` is the id of its module, and the ids of its maps begin with
        `first`.
        """
        return records.make(
            "kernel",
            id=id_,
            name=self.kernel,
            params=[_present(param._asdict()) for param in self.params],
            added=[_present(param._asdict()) | {"map": first + place} for place, param in enumerate(self.added)],
            cluster=self.cluster,
            room=self.room or None,
            maps=list(range(first, first + len(self.maps))),
            sites=[site._asdict() for site in self.sites if site.matched],
            variables=[_present(variable._asdict()) for variable in self.variables] or None,
            table=self.table,
            verified=int(verified),
        )


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
