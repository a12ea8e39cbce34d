"""Parse compute capabilities as people and files spell them: `sm_90`, `sm_90a`, `sm_100f`, and `9.0` as in CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpt.base.errors import UsageError

# CUDA 13 generates code for these. They're listed in messages and completions; other numbers are accepted as well.
KNOWN = (
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120",
    "sm_121",
)  # fmt: skip

_ARCH = re.compile(r"sm_(\d{1,3})(\d)([af]?)", re.ASCII)
_DOTTED = re.compile(r"(\d{1,3})\.?(\d)([af]?)", re.ASCII)
_NEAR = re.compile(r"\s*(?:sm|compute|lto)?[_-]?(\d{1,3})\.?(\d)([af]?)\s*", re.ASCII | re.IGNORECASE)


class Arch(NamedTuple):
    """A compute capability: sm_90a is (9, 0, "a"). `suffix` is empty, `a` or `f`."""

    major: int
    minor: int
    suffix: str

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"


def find_arch(text: str) -> Arch | None:
    """Parse `sm_90a`; return None if it isn't the name of a compute capability in files."""
    found = _ARCH.fullmatch(text)
    return Arch(int(found[1]), int(found[2]), found[3]) if found else None


def parse_arch(text: str) -> Arch:
    """Parse a compute capability as people type it: `sm_90a`, `9.0a` or `90a`. Raises UsageError."""
    found = _ARCH.fullmatch(text) or _DOTTED.fullmatch(text)
    if found:
        return Arch(int(found[1]), int(found[2]), found[3])
    if near := _NEAR.fullmatch(text):
        raise UsageError(f"not a compute capability: '{text}' (did you mean sm_{''.join(near.groups()).lower()}?)")
    raise UsageError(f"not a compute capability: '{text[:100]}' (there are {', '.join(KNOWN)})")


def parse_archs(text: str) -> list[Arch]:
    """Parse the value of --arch, such as `sm_90a,8.0`.

    The result is in the same order, without duplicates, and empty for empty text. Raises UsageError.
    """
    try:
        archs = dict.fromkeys(parse_arch(name) for name in text.split(",") if name)
    except UsageError as error:
        raise UsageError(f"--arch: {error.fact}") from None
    if text and not archs:
        raise UsageError(f"--arch: no compute capability in '{text[:100]}' (there are {', '.join(KNOWN)})")
    return list(archs)


def describe(found: Iterable[tuple[str, str]]) -> str:
    """Return types of code, each with its architectures: `cubin for sm_80, sm_90; ptx for sm_90`."""
    kinds: dict[str, list[str]] = {}
    for type_, arch in sorted(found):
        kinds.setdefault(type_, []).append(arch)
    return "; ".join(f"{type_} for {', '.join(archs)}" for type_, archs in kinds.items())
