"""Determine the devices that code must run on, from each --arch or from the traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.base.arch import Arch, find_arch
from gpt.base.errors import MalformedError, UsageError
from gpt.locate.holding import MAX_TARGETS
from gpt.locate.unused import Device
from gpt.trace.used import Used


@dataclass
class DeviceSet:
    """The devices of one --arch, or of all traces, and the code that was found for them."""

    devices: list[Device]
    number: int = 1
    asked: bool = False  # True if it's from --arch
    arch: str | None = None  # `arch` in its records, if they have to be distinguished from records for other targets
    idle: list[Device] = field(default_factory=list)  # requested devices for which no code has been found
    kept: set[str] = field(default_factory=set)  # used names in elements that are kept
    lost: dict[str, str] = field(default_factory=dict)  # libraries without code for them -> the code that they have

    def __post_init__(self) -> None:
        self.idle = list(self.devices) if self.asked else []

    @property
    def all_idle(self) -> bool:
        """Return whether no code has been found for any of the devices."""
        return self.asked and len(self.idle) == len(self.devices)


def find_targets(archs: Sequence[Sequence[Arch]], used: Used, everything: bool) -> list[DeviceSet]:
    """Return the devices of each --arch, or if there's none, of the traces.

    Values that name the same devices in a different order count as one. Suffixes are ignored, because they belong to
    code and not to devices: an H100 is sm_90, and runs code for sm_90a. So the wheels for sm_90 and for sm_90a would be
    the same.

    The records that are made for a value of --arch name it in `arch` if there are several values, or if nothing else
    decides what's used (`everything`). Raises MalformedError, and UsageError if there are no devices.
    """
    groups = list(dict.fromkeys(tuple(sorted({arch._replace(suffix="") for arch in group})) for group in archs))
    if len(groups) > MAX_TARGETS:
        raise UsageError(f"--arch: given more than {MAX_TARGETS} times")
    named = everything or len(groups) > 1
    targets = [
        DeviceSet([Device(arch) for arch in group], number, True, ",".join(map(str, group)) if named else None)
        for number, group in enumerate(groups, 1)
    ]
    if targets:
        return targets
    devices = [Device(_arch_of(name), runs == "ptx") for name, runs in sorted(used.devices)]
    if not devices:
        raise UsageError("no trace names a device: give --arch, for example --arch sm_90")
    return [DeviceSet(devices)]


def _arch_of(name: str) -> Arch:
    if arch := find_arch(name):
        return arch
    raise MalformedError(f"a trace has a device of architecture '{name}'")
