"""Read the head of a module as strictly as ptxas does: `.version`, `.target`, `.address_size`, in this order.

The table says which PTX version introduced each target. It has what ptxas 13.0 and 13.5 accept; the PTX manual omits
some targets (sm_82). `compute_90` means `sm_90`. In a list of targets, the last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from gpt.base.errors import MalformedError
from gpt.ptx.scan import Item, Module
from gpt.ptx.types import integer

_SINCE = {  # the targets that each version added
    "1.0": "10 11",
    "1.1": "",
    "1.2": "12 13",
    "1.3": "",
    "1.4": "",
    "1.5": "",
    "2.0": "20 21",
    "2.1": "",
    "2.2": "",
    "2.3": "",
    "3.0": "30",
    "3.1": "35",
    "3.2": "",
    "4.0": "32 50",
    "4.1": "37 52",
    "4.2": "53",
    "4.3": "",
    "5.0": "60 61 62",
    "5.1": "70",
    "6.0": "",
    "6.1": "72",
    "6.2": "82",
    "6.3": "75",
    "6.4": "",
    "6.5": "",
    "7.0": "80",
    "7.1": "86",
    "7.2": "",
    "7.3": "88",
    "7.4": "87",
    "7.5": "",
    "7.6": "",
    "7.7": "",
    "7.8": "89 90",
    "8.0": "90a",
    "8.1": "",
    "8.2": "",
    "8.3": "",
    "8.4": "",
    "8.5": "",
    "8.6": "100 100a 101 101a",
    "8.7": "120 120a",
    "8.8": "100f 101f 103 103a 103f 120f 121 121a 121f",
    "9.0": "110 110a 110f",
    "9.1": "",
    "9.2": "",
    "9.3": "",
    "9.4": "107 107a 107f",
    "9.5": "",
}
VERSIONS = {text: (int(text.partition(".")[0]), int(text.partition(".")[2])) for text in _SINCE}
TARGETS = {target: version for version, targets in _SINCE.items() for target in targets.split()}
NEWEST = max(VERSIONS.values())
_OPTIONS = {"texmode_unified": (1, 0), "texmode_independent": (1, 5), "map_f64_to_f32": (1, 0), "debug": (3, 0)}
_SIZED = (2, 3)  # the first version with .address_size
_VERSION = re.compile(r"\.version[ \t\r]+((\d{1,4})\.(\d{1,4}))(?!\w)", re.ASCII)
_TARGET = re.compile(r"(?:sm|compute)_((\d{1,4})([af]?))", re.ASCII)
_ORDER = ("version", "target", "address_size")


@dataclass(frozen=True)
class Head:
    """The head of a module: 8.5 is (8, 5), and sm_90a is 90 and `a`."""

    version: tuple[int, int]
    target: int
    suffix: str
    address_size: int = 64
    texmode_independent: bool = False  # True if samplers are separate variables

    @property
    def is_newer(self) -> bool:
        """Return True if the version is newer than all that we know, in which case the target wasn't checked."""
        return self.version > NEWEST


def read_head(module: Module) -> Head:
    """Read the head of a module. Raises MalformedError, with line and column, for everything that ptxas rejects."""
    items = module.items
    if not items or items[0].kind != "version":
        raise module.fault(items[0].start if items else len(module.text), "no .version at the beginning")
    targets = list(takewhile(lambda item: item.kind == "target", items[1:]))
    if not targets:
        raise module.fault(items[1].start if len(items) > 1 else len(module.text), "no .target after .version")
    rest = items[1 + len(targets) :]
    sizes = rest[:1] if rest and rest[0].kind == "address_size" else ()
    if wrong := next((item for item in rest[len(sizes) :] if item.kind in ("version", "target", "address_size")), None):
        raise _fault(module, wrong, "goes only at the beginning, after .version and .target")
    version = _read_version(module, items[0])
    target, suffix = _read_target(module, targets, version)
    size = _read_size(module, sizes[0], version) if sizes else 64
    independent = any("texmode_independent" in _text(module, item) for item in targets)
    return Head(version, target, suffix, size, independent)


def _read_version(module: Module, item: Item) -> tuple[int, int]:
    found = _VERSION.match(module.text, item.start)
    if found and found[1] in VERSIONS:
        return VERSIONS[found[1]]
    if found and (version := (int(found[2]), int(found[3]))) > NEWEST and found[1] == "{}.{}".format(*version):
        return version
    raise _fault(module, item, "no such version of PTX (the newest that is known is {}.{})".format(*NEWEST))


def _read_target(module: Module, items: list[Item], version: tuple[int, int]) -> tuple[int, str]:
    """Return the number and the suffix of the last architecture, because there may be several, even in several
    directives.
    """
    words = [(item, word.strip()) for item in items for word in _text(module, item)[len(".target") :].split(",")]
    architectures = [found for _, word in words if (found := _TARGET.fullmatch(word))]
    for item, word in words if version <= NEWEST else ():
        found = _TARGET.fullmatch(word)
        needed = VERSIONS.get(TARGETS.get(found[1], "")) if found else _OPTIONS.get(word)
        if not needed:
            raise _fault(module, item, f"no such target: '{word}'")
        if version < needed:
            raise _fault(module, item, "'{}' needs .version {}.{} or later, not {}.{}".format(word, *needed, *version))
    item, options = items[0], {word for _, word in words}
    if not _TARGET.fullmatch(words[0][1]):
        raise _fault(module, item, "no architecture in the first place")
    number, suffix = int(architectures[-1][2]), architectures[-1][3]
    if {"texmode_unified", "texmode_independent"} <= options:
        raise _fault(module, item, "one texture mode, not both")
    if "map_f64_to_f32" in options and number >= 13:
        raise _fault(module, item, "'map_f64_to_f32' goes with targets before sm_13 only")
    if "debug" in options and not any(one.kind == "section" for one in module.items):
        raise _fault(module, item, "'debug' needs sections with debug information, and the module has none")
    return number, suffix


def _read_size(module: Module, item: Item, version: tuple[int, int]) -> int:
    size = integer(_text(module, item).split()[-1])
    if size not in (32, 64):
        raise _fault(module, item, "addresses have 32 or 64 bits")
    if version < _SIZED:
        raise _fault(module, item, "needs .version {}.{} or later, not {}.{}".format(*_SIZED, *version))
    return size


def _text(module: Module, item: Item) -> str:
    return " ".join(module.skeleton[item.start : item.end].split())


def _fault(module: Module, item: Item, fact: str) -> MalformedError:
    return module.fault(item.start, f"'{_text(module, item)[:80]}': {fact}")
