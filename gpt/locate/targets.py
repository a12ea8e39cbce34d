"""The devices that code is for: those of each --arch, or of the traces."""

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
    """The devices of one --arch, or those of the traces, and what the code so far has for them."""

    devices: list[Device]
    number: int = 1
    asked: bool = False  # by --arch
    arch: str | None = None  # what its records say, if they are to be told from those of others
    idle: list[Device] = field(default_factory=list)  # asked for, and none of the code so far is for these
    kept: set[str] = field(default_factory=set)  # used names that an element holds that stays
    lost: dict[str, str] = field(default_factory=dict)  # libraries without code for any of them, and what they have

    def __post_init__(self) -> None:
        self.idle = list(self.devices) if self.asked else []

    @property
    def all_idle(self) -> bool:
        """Whether no code so far is for any of the devices."""
        return self.asked and len(self.idle) == len(self.devices)


def find_targets(archs: Sequence[Sequence[Arch]], used: Used, everything: bool) -> list[DeviceSet]:
    """The devices of each --arch, otherwise those of the traces. Raises UsageError if there are none, MalformedError.

    What only an --arch decides is named after it: `everything`, or several of them.
    """
    if len(archs) > MAX_TARGETS:
        raise UsageError(f"--arch: given more than {MAX_TARGETS} times")
    named = everything or len(archs) > 1
    targets = [
        DeviceSet([Device(arch) for arch in group], number, True, ",".join(map(str, group)) if named else None)
        for number, group in enumerate(archs, 1)
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
