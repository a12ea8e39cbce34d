"""Check the words of an instruction: which other words, and which .target or .version, they require. A row has these
rules as text.

    "ftz: f16 f32; rz rm rp: !sat; bf16: sm_90; : 7.8"

A rule has words and, after the colon, alternatives: an instruction with one of these words must satisfy at least one of
the alternatives. If there are no words before the colon, the rule applies to every form. An alternative is

    word      a word of the instruction
    !word     a word that must be absent
    sm_90     this target or a later one
    sm_100a   this family only, with its features
    8.6       this version or a later one
    <sm_70    a target (or version) before this one

`T=f16` is a word from the set T, `T=*` any word from it, and `relu+f16` means both words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

from gpt.ptx.head import Head

_ALTERNATIVE = re.compile(r"(?P<before><?)(?:sm_(?P<target>\d+)(?P<family>a?)|(?P<major>\d+)\.(?P<minor>\d+))")
_EVERYWHERE = (  # rules for all instructions
    "shared::cta: 7.8 async; shared::cluster: 7.8; shared::cluster: sm_90; param::entry param::func: 8.3; T=b128: 8.3;"
    "L2::cache_hint L2::64B L2::128B L2::256B L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last: 7.4;"
    "L1::no_allocate L2::evict_last L2::evict_normal L2::evict_first: 7.4;"
    "weak relaxed acquire release acq_rel: sm_70; weak relaxed acquire release acq_rel: 6.0"
)


@dataclass(frozen=True)
class Dialect:
    """The .target and .version that a module names."""

    target: int
    version: tuple[int, int]
    family: bool = False  # sm_90a, sm_100f: only for that family's features

    @classmethod
    def of(cls, head: Head) -> Dialect:
        """Return the .target and .version of a module with this head."""
        return cls(head.target, head.version, bool(head.suffix))

    def has(self, wanted: re.Match[str]) -> bool:
        """Return True if a module with this target and version satisfies an alternative."""
        if wanted["target"] and wanted["family"]:
            first = int(wanted["target"])
            return self.family and first <= self.target < first - first % 10 + 10
        if wanted["target"]:
            later = self.target >= int(wanted["target"])
        else:
            later = self.version >= (int(wanted["major"]), int(wanted["minor"]))
        return later != bool(wanted["before"])


@dataclass(frozen=True)
class Rule:
    """A rule: an instruction with one of the words must satisfy one of the alternatives."""

    words: tuple[str, ...]
    needs: tuple[str, ...]

    def broken(self, words: Collection[str], dialect: Dialect) -> str:
        """Return why a form with these words is rejected, or "" if it's accepted."""
        found = next((word for word in self.words if all(one in words for one in word.split("+"))), "")
        if (self.words and not found) or any(_holds(need, words, dialect) for need in self.needs):
            return ""
        subject = " and ".join(f"'.{_shown(word, words)}'" for word in found.split("+")) if found else "this form"
        return f"{subject} {_said(self.needs, words)}"


@cache
def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the rules of a row, and add the rules for all instructions."""
    return tuple(_rules(f"{text};{_EVERYWHERE}"))


def _rules(text: str) -> Iterator[Rule]:
    for rule in filter(None, map(str.strip, text.split(";"))):
        words, _, needs = rule.partition(":" if rule[0] == ":" else ": ")
        yield Rule(tuple(words.split()), tuple(needs.split()))


def _holds(need: str, words: Collection[str], dialect: Dialect) -> bool:
    if wanted := _ALTERNATIVE.fullmatch(need):
        return dialect.has(wanted)
    return need[1:] not in words if need[0] == "!" else need in words


def _shown(word: str, words: Collection[str]) -> str:
    """Return a word of a rule without the name of its set. For a whole set, return the word that the instruction
    has.
    """
    of, _, one = word.rpartition("=")
    given = (other.rpartition("=")[2] for other in sorted(words) if of and other.startswith(f"{of}="))
    return next((other for other in given if other != "*"), one) if one == "*" else one


def _said(needs: tuple[str, ...], words: Collection[str]) -> str:
    """Return a description of what a rule requires."""
    targets = [need for need in needs if need[:3] == "sm_"]
    if targets:
        later = "" if targets[0][-1] == "a" else " or later"
        return f"needs .target {' or '.join(targets)}{later}"
    if needs[0][0] == "<":
        return f"needs .target or .version before {' or '.join(need[1:] for need in needs)}"
    if _ALTERNATIVE.fullmatch(needs[0]):
        return f"needs .version {needs[0]} or later"
    if needs[0][0] == "!":
        return f"doesn't go with '.{_shown(needs[0][1:], words)}'"
    return f"goes with {' or '.join('.' + need.rpartition('=')[2] for need in needs)} only"
