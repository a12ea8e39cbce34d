"""List the back ends. To add one, put a file or folder next to ptxas.py and add a line here."""

from __future__ import annotations

from typing import Any

from gpt.asm.backend import Backend, Target
from gpt.asm.host.backend import Host
from gpt.asm.ptxas import Ptxas
from gpt.base.errors import UsageError

BACKENDS: dict[str, type[Backend[Any]]] = {"sm": Ptxas, "host": Host}  # by family of targets


def parse_targets(text: str) -> list[Target]:
    """Parse `--arch` into targets, in order and without duplicates. Raises UsageError."""
    words = [word for word in text.split(",") if word]
    if not words:
        raise UsageError("--arch SM,... is required, for example --arch sm_90")
    return list(dict.fromkeys(map(_parse_target, words)))


def _parse_target(word: str) -> Target:
    faults = []
    for backend in BACKENDS.values():
        try:
            target: Target = backend.parse_target(word)
            return target
        except UsageError as error:
            faults.append(error.fact)
    raise UsageError(f"--arch: {faults[0]}")
