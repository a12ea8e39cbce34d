"""The fuzzing targets, one per reader: in Python, and in C (native.py)."""

from __future__ import annotations

from tests.fuzz import machine_code
from tests.fuzz.engine import Target
from tests.fuzz.native import HARNESSES, Harness
from tests.fuzz.readers import READERS
from tests.fuzz.streams import STREAMS

TARGETS: list[Target] = [*READERS, *STREAMS, machine_code.TARGET]
ALL: dict[str, Target | Harness] = {target.name: target for target in TARGETS}
ALL |= {harness.name: harness for harness in HARNESSES}
