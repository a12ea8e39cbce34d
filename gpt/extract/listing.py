"""Make the records of a file with GPU code: `library`, `element` or `ptx`, `library_end`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from gpt.base.arch import describe
from gpt.base.errors import GptError
from gpt.base.outputs import replacing
from gpt.base.workers import run_all
from gpt.extract.contents import Opened, Opener, iter_batches
from gpt.extract.unfound import iter_unfound
from gpt.formats.closed import find_soname
from gpt.formats.cubin import find_ptx
from gpt.formats.fatbin import Element
from gpt.formats.image import FATBIN_SECTIONS, Image, Placed
from gpt.formats.source import Source
from gpt.stream import records
from gpt.stream.wire import Packed

NAMED, LOOKED_INTO = 3, 64  # kernels named in a message, and elements searched for them
FEW = 4  # with fewer batches than this, forking isn't worth it
MAX_PAYLOAD = records.MAX_RECORD - (8 << 20)  # bytes, so that the names fit in the record, too

_RANKS: dict[str | None, int] = {None: 0, **{name: rank for rank, name in enumerate(FATBIN_SECTIONS)}}

Records = Iterator[dict[str, Any]]
Output = dict[str, Any] | Packed


@dataclass
class Listing:
    """A selection of elements. An empty one selects all. `warn` makes a `diag` from a location and a fact.

    `numbers` counts elements by file name and type, for numbering the files that are saved.
    """

    jobs: int
    warn: Callable[[str, str], dict[str, Any]]
    scan: bool = False
    archs: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    kernels: list[str] = field(default_factory=list)
    payload: bool = False
    ptx: bool = False
    digest: bool = True  # hash the whole file, which takes as long as everything else
    save: Path | None = None
    # Keys to copy from the current `module` record to its PTX records.
    wishes: dict[str, Any] = field(default_factory=dict)
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)
    modules: int = 0  # elements of earlier files
    found: dict[tuple[str, str], None] = field(default_factory=dict)  # types and architectures that exist
    named: dict[str, None] = field(default_factory=dict)  # some kernels that occur, collected while none was selected
    matched: bool = False  # True if anything was selected
    unmatched: set[str] = field(init=False)  # globs of `kernels` that haven't matched

    def __post_init__(self) -> None:
        """Start with no glob matched."""
        self.unmatched = set(self.kernels)

    def iter_records(self, image: Image, progress: Callable[[int, int], None]) -> Iterator[Output]:
        """Yield the records of a file, or nothing if it contains no GPU code. Raises MalformedError."""
        source = image.source
        found = list(image.iter_elements(self.scan))
        if not found and not image.has_fatbins:
            return
        self.found |= dict.fromkeys((placed.element.type, placed.element.arch) for placed in found)
        names = self._name_all(source, found) if self.save else {}
        wanted = list(self._select(found))
        opener = Opener(source, wanted)
        batches = list(iter_batches(wanted))
        tasks: list[Callable[[], Any]] = [source.sha256 if self.digest else _no_digest]
        tasks += [partial(self._pack, opener, batch, names) for batch in batches]
        results = run_all(tasks, self.jobs if len(batches) > FEW else 1)
        yield records.make(
            "library",
            path=source.name,
            type=image.type,
            size=source.size,
            build_id=image.build_id,
            soname=(find_soname(source, image.elf) or None) if image.elf else None,
            sha256=next(results),
            machine=image.machine,
        )
        for batch in batches:
            progress(batch[0].element.offset, source.size)
            yield (packed := next(results))
            self.matched |= packed.count > 0
        for fact in iter_unfound(image, found):
            yield self.warn(source.name, fact)
        yield records.make("library_end", path=source.name)
        self.modules += len(found)
        if self.kernels and not self.matched:
            self._name_some(opener, found)

    def _name_some(self, opener: Opener, found: list[Placed]) -> None:
        """Collect some names of kernels for an error message."""
        for placed in islice(self._select(found), LOOKED_INTO):
            if len(self.named) >= NAMED:
                return
            self.named |= dict.fromkeys(
                symbol["name"] for symbol in opener.open(placed, False).contents.kernels[:NAMED]
            )

    def find_idle(self) -> str | None:
        """Return why nothing was selected, and the possible choices.

        Return None if something was selected, or if there's no GPU code.
        """
        if self.matched or not self.found:
            return None
        types = {"ptx"} if self.ptx else self.types
        fits = [arch for type_, arch in self.found if arch in (self.archs or {arch}) and type_ in (types or {type_})]
        if fits and self.kernels:
            names = f": there are {', '.join(islice(self.named, NAMED))} (--names lists all)" if self.named else ""
            return f"no kernel matches {' or '.join(map(repr, self.kernels))}{names}"
        what = "PTX" if self.ptx else " or ".join(sorted(types)) or "code"
        wanted = f" for {' or '.join(sorted(self.archs))}" if self.archs else ""
        lacking = self.ptx and not any(type_ == "ptx" for type_, _ in self.found)
        hint = " (nvcc adds PTX with -gencode arch=compute_XY,code=compute_XY)" if lacking else ""
        return f"no {what}{wanted}: there is {describe(self.found)}{hint}"

    def _pack(self, opener: Opener, batch: list[Placed], names: dict[int, str]) -> Packed:
        """Return the records of a batch. If requested, save its elements."""
        return Packed(record for placed in batch for record in self._open(opener, placed, names))

    def _open(self, opener: Opener, placed: Placed, names: dict[int, str]) -> Records:
        item = opener.open(placed, self._wants_data(placed.element))
        if not self._has_kernel(item):
            return
        if self.save:
            _write(self.save / names[placed.index], item)
        yield from self._ptx(opener.source, item) if self.ptx else self._element(opener.source, item)

    def _name_all(self, source: Source, found: list[Placed]) -> dict[int, str]:
        """Return the file name under which each element is saved, by index. The names are the same as cuobjdump's.

        cuobjdump numbers each type separately. Within a member of an archive, it counts linked code before relocatable
        code, whatever the order in the file. Code in other sections comes last here. If a file consists of a single
        element, that gets no number.
        """
        stem = Path(source.name).stem or "module"
        names: dict[int, str] = {}
        for _, member in groupby(found, key=lambda placed: placed.member):
            for placed in sorted(member, key=lambda placed: _RANKS.get(placed.section, len(_RANKS))):
                arch, type_ = placed.element.arch, placed.element.type
                number = self.numbers[stem, type_] = self.numbers[stem, type_] + 1
                alone = placed.element.header_size == 0 and placed.element.size == source.size and number == 1
                names[placed.index] = f"{stem}{'' if alone else f'.{number}'}.{arch}.{type_.replace(':', '')}"
        return names

    def _select(self, found: Iterable[Placed]) -> Iterator[Placed]:
        """Yield the elements with a selected type and architecture."""
        for placed in found:
            arch, type_ = placed.element.arch, placed.element.type
            if arch in (self.archs or {arch}) and type_ in (self.types or {type_}):
                yield placed

    def _wants_data(self, element: Element) -> bool:
        return self.payload or self.save is not None or (self.ptx and element.type in ("ptx", "cubin"))

    def wants_kernel(self, name: str) -> bool:
        """Return whether a kernel with this name is selected."""
        return not self.kernels or any(fnmatchcase(name, glob) for glob in self.kernels)

    def _has_kernel(self, item: Opened) -> bool:
        names = [symbol["name"] for symbol in item.contents.kernels]
        found = {glob for glob in self.kernels if any(fnmatchcase(name, glob) for name in names)}
        self.unmatched -= found
        return not self.kernels or bool(found)

    def _element(self, source: Source, item: Opened) -> Records:
        element, data = item.placed.element, item.data if self.payload else None
        if data is not None and len(data) > MAX_PAYLOAD:
            yield self.warn(source.at(element.offset), f"payload of {len(data)} bytes is over the limit: use --save")
            data = None
        yield self._make_element(source, item, data, self.wishes.get("only"))

    def _make_element(self, source: Source, item: Opened, data: bytes | None, only: list[str] | None) -> dict[str, Any]:
        placed, element, contents = item.placed, item.placed.element, item.contents
        return records.make(
            "element",
            library=source.name,
            section=placed.section,
            member=placed.member,
            region=element.region,
            index=placed.index,
            type=element.type,
            arch=element.arch,
            offset=element.offset,
            header_size=element.header_size,
            payload_size=element.payload_size,
            size=element.size,
            codec=element.codec,
            flags=element.flags,
            kernels=contents.kernels,
            functions=contents.functions,
            variables=contents.variables,
            sha256=item.sha256,
            only=only,
            data=data,
        )

    def _ptx(self, source: Source, item: Opened) -> Records:
        element, text = item.placed.element, item.data
        if text is not None and element.type == "cubin":
            text = find_ptx(text)
        if text is None or element.type not in ("ptx", "cubin"):
            if self.payload and element.type == "cubin":
                yield from self._element(source, item)
            return
        kernels = [symbol["name"] for symbol in item.contents.kernels]
        index = item.placed.index
        yield records.make(
            "ptx",
            id=self.modules + index,
            module=f"{source.name}#{index}",
            arch=element.arch,
            kernels=kernels,
            **self.wishes,
            data=text,
        )

    def one_kernel(self, source: Source, index: int, arch: str, kernel: str, text: bytes) -> dict[str, Any]:
        """Return the record for the PTX of a single kernel."""
        number, self.modules, self.matched = self.modules, self.modules + 1, True
        module, wishes = f"{source.name}#{index}", self.wishes | {"only": [kernel]}
        return records.make("ptx", id=number, module=module, arch=arch, kernels=[kernel], **wishes, data=text)

    def one_element(self, source: Source, item: Opened, kernel: str) -> dict[str, Any]:
        """Return the record of a kernel's element, with its bytes."""
        self.matched = True
        return self._make_element(source, item, item.data, [kernel])


def _no_digest() -> None:
    """Compute no digest, for output that doesn't need one."""


def _write(path: Path, item: Opened) -> None:
    """Save the unpacked bytes of an element. Raises GptError."""
    assert item.data is not None
    try:
        with replacing(path) as file:
            file.write(item.data)
    except OSError as error:
        raise GptError(error.strerror or str(error), str(path)) from None
