"""Read which kernels and libraries were used: from traces, from text with a name per line, or from a list in another
format.

An incomplete trace must not be taken as evidence that code is unused. A trace is *truncated* if bytes or the trace of a
child are missing; such a trace is rejected. It's *interrupted* if all chunks are complete but there's no `end`, because
the process was killed; such a trace is rejected if it belongs to the root process, and otherwise causes a warning. With
`allow_incomplete`, both are only warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from gpt.base.errors import GptError, MalformedError, TruncatedError
from gpt.formats.paths import open_regular, read_at_most
from gpt.stream import wire
from gpt.trace.inputs import list_used

if TYPE_CHECKING:
    from gpt.trace.follow import Trace
    from gpt.trace.process import Process

Place = tuple[str, str | None, int]
MAX_TEXT = 1 << 30  # bytes of a list of names
BOM = b"\xef\xbb\xbf"  # some editors write it at the beginning of text
IN_MEMORY = "a module in memory"


class Loaded(NamedTuple):
    """A file that was loaded: its size and build id, if they're known, and whether it may contain GPU code."""

    size: int | None = None
    build_id: str | None = None
    gpu: bool = True


@dataclass
class Used:
    """The union of what several runs used.

    - `names` are mangled names of kernels, with the library that they came from according to a trace, or None. `lists`
      are names from lists, with the path of the list; these may be demangled.
    - `devices` are compute capabilities with what they run (`sass` or `ptx`).
    - `whole` are images that may be needed completely: the path of the file, its build id or None, and the offset of
      the image in it. `listed` are those among them whose kernels were enumerated.
    - `images` are the digests of images loaded from memory, with the libraries whose code loaded each, or None if that
      isn't known.
    - `loaded` are the files that were loaded, by path.
    """

    names: dict[str, str | None] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    devices: set[tuple[str, str]] = field(default_factory=set)
    whole: set[Place] = field(default_factory=set)
    listed: set[Place] = field(default_factory=set)
    images: dict[str, set[str | None]] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)


def read_used(paths: list[Path], allow_incomplete: bool) -> Used:
    """Read all files, and combine them. Raises GptError if one is incomplete, and MalformedError if one is
    malformed.
    """
    used = Used()
    for path in paths:
        with open(path, "rb") as file:
            head = file.peek(1)[:3]  # peeks instead of seeking, because it may be a pipe
            if head >= b"\x80" and not head.startswith(BOM):
                _read_traces(path, file, used, allow_incomplete, paths)
            else:
                data = read_at_most(file, MAX_TEXT)
                if listed := list_used(data, path):
                    _add_listed(*listed, used)
                else:
                    _read_text(data, path, used)
    return used


def _read_text(data: bytes, path: Path, used: Used) -> None:
    if b"\0" in data:
        raise MalformedError("neither a trace nor text", str(path))
    for line in data.removeprefix(BOM).decode(errors="surrogateescape").splitlines():
        name = line.strip()
        if name and not name.startswith("#"):
            used.names.setdefault(name, None)
            used.lists.setdefault(name, str(path))


def _add_listed(names: list[str], libraries: list[str], used: Used) -> None:
    for name in names:
        used.names.setdefault(name, None)
    for library in libraries:
        used.loaded.setdefault(library, Loaded())


def _read_traces(root: Path, file: IO[bytes], used: Used, allow_incomplete: bool, given: list[Path]) -> None:
    """Add a trace and the traces of its descendants. `file` is the trace; it's already open, because it may be a
    pipe.
    """
    from gpt.trace.follow import Follow

    def read(path: Path | None) -> Iterator[dict[str, Any]]:
        if path == root:
            yield from wire.read_records(file, str(root))
        elif path:
            with open_regular(path) as inner:
                yield from wire.read_records(inner, str(path))

    followed = Follow([root], read, given)
    for trace in followed:
        _read_trace(trace, used, allow_incomplete)
    for parent, child in followed.absent:
        fact = f"truncated trace (the trace of a child, {child}, is absent)"
        if not allow_incomplete:
            raise GptError(f"{fact}: --allow-incomplete uses it", parent)
        used.warnings.append((parent, fact))


def _read_trace(trace: Trace, used: Used, allow_incomplete: bool) -> None:
    from gpt.trace.kinds import LOADS
    from gpt.trace.process import iter_processes

    try:
        for process in iter_processes(iter(trace), LOADS):
            if process.header["tool"] == "gpt-extract":  # what it lists doesn't count as used
                raise MalformedError("not a trace, but output of gpt-extract ('gpt-hook run' records one)", trace.name)
            if process.header.get("attached"):
                fact = "its process ran before it was watched ('gpt-hook attach'): earlier use is unknown"
                if not allow_incomplete:
                    raise GptError(f"{fact}; --allow-incomplete uses it", trace.name)
                used.warnings.append((trace.name, fact))
            _add_process(process, used)
    except TruncatedError as error:
        if not allow_incomplete:
            raise GptError(f"truncated trace ({error.fact}): --allow-incomplete uses it", error.where) from None
        used.warnings.append((error.where, f"truncated trace: {error.fact}"))
    except MalformedError as error:
        raise error if error.where else MalformedError(error.fact, trace.name) from None
    if trace.interrupted:
        fact = "interrupted trace (its process was killed): later use is unknown"
        if trace.root and trace.interrupted - trace.forked and not allow_incomplete:
            raise GptError(f"{fact}; --allow-incomplete uses it", trace.name)
        used.warnings.append((trace.name, fact))


def _add_process(process: Process, used: Used) -> None:
    """Add the images that a process loaded and the kernels that it looked up, and the files that contain them."""
    used.devices |= process.devices
    modules = dict(process.modules)
    for _, image in process.modules:
        if image.path is None and image.sha256 is not None:
            used.images.setdefault(image.sha256, set()).add(image.loader)
    files = {module.path for module in modules.values()}
    for path, library in process.libraries.items():
        gpu = bool(library.get("gpu")) or path in files
        used.loaded[path] = Loaded(library["size"], library.get("build_id"), gpu)
    for function in process.functions:
        module = None if function.module is None else modules.get(function.module)
        origin = module and (IN_MEMORY if module.path is None else module.path)
        used.names[function.name] = used.names.get(function.name) or origin
    for number, what in process.lookups:
        found = modules.get(number)
        if found is None or found.path is None:
            fact = f"module {number} is in no file, and all of it may be used ({what})"
            used.warnings.append(("trace", f"{fact}: its code is kept only if --scan finds its image"))
            continue
        place = found.path, process.libraries.get(found.path, {}).get("build_id"), found.offset
        used.whole.add(place)
        if what != "variable":
            used.listed.add(place)
