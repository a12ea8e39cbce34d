"""What was used: kernel names from GPT traces, Negativa-ML's trace.json, or text with a name a line.

A trace that is not whole must not decide that code is unused. *Truncated* (bytes missing, a child's trace
absent) is refused; *interrupted* (chunks whole, no `end`: the process was killed) is refused for the root
process and a warning for its children. `allow_incomplete` turns both into warnings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpt import records, stream
from gpt.errors import GptError, MalformedError, TruncatedError
from gpt.formats.paths import open_regular, read_at_most, real_path

Place = tuple[str, str | None, int]
MAX_TEXT = 1 << 30  # bytes of a list of names
BOM = b"\xef\xbb\xbf"  # where an editor put one before the text
IN_MEMORY = "a module in memory"


class Loaded(NamedTuple):
    """A file that was loaded: size and build id where they are known, and whether it may hold GPU code."""

    size: int | None = None
    build_id: str | None = None
    gpu: bool = True


@dataclass
class Used:
    """The union of what several runs used.

    `names` are mangled kernel names, with the library that a trace saw the kernel come from, or None. `lists` are
    those that stand in a list, with the list; there they may be demangled.
    `devices` are compute capabilities with what they run (`sass` or `ptx`). `whole` are images of which all
    may be needed: (path of the file, build id of that file or None, offset of the image in it); `listed` are those
    of them whose kernels were enumerated. `images` are the digests of those that were loaded from memory, each with the
    libraries whose code did it, None where that is not known. `loaded` are the files that were loaded, by path.
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
    """Reads and unites the files. Raises GptError where one is incomplete, MalformedError where it is nonsense."""
    used = Used()
    for path in paths:
        with open(path, "rb") as file:
            head = file.peek(1)[:3]  # and no seek: it may be a pipe
            if head >= b"\x80" and not head.startswith(BOM):
                _read_traces(path, file, used, allow_incomplete)
            elif head[:1] == b"{":
                _read_negativa(read_at_most(file, MAX_TEXT), path, used)
            else:
                _read_text(read_at_most(file, MAX_TEXT), path, used)
    return used


def _read_text(data: bytes, path: Path, used: Used) -> None:
    if b"\0" in data:
        raise MalformedError("neither a trace nor text", str(path))
    for line in data.removeprefix(BOM).decode(errors="surrogateescape").splitlines():
        name = line.strip()
        if name and not name.startswith("#"):
            used.names.setdefault(name, None)
            used.lists.setdefault(name, str(path))


def _read_negativa(data: bytes, path: Path, used: Used) -> None:
    try:
        value = json.loads(data)
        names = value["detected_kernels"]
        libraries = value.get("loaded_sos", [])
        for key, strings in (("detected_kernels", names), ("loaded_sos", libraries)):
            if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
                raise TypeError(f"{key} is no list of strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"no trace.json of Negativa-ML: {error}", str(path)) from None
    for name in names:
        used.names.setdefault(name, None)
    for path_loaded in libraries:
        used.loaded.setdefault(path_loaded, Loaded())


def _read_traces(path: Path, file: IO[bytes], used: Used, allow_incomplete: bool) -> None:
    """Adds a trace, and those of its children and of theirs."""
    seen = {real_path(path)}
    pending = [(path, child) for child in _read_trace(path, file, used, allow_incomplete, root=True)]
    for parent, child in pending:  # grows
        if (real := real_path(child)) in seen:
            continue
        seen.add(real)
        if child.exists():
            with open_regular(child) as inner:
                pending += [(child, c) for c in _read_trace(child, inner, used, allow_incomplete, root=False)]
        elif allow_incomplete:
            used.warnings.append((str(parent), f"the trace of a child is absent: {child}"))
        else:
            fact = f"truncated trace (the trace of a child, {child}, is absent): --allow-incomplete"
            raise GptError(fact, str(parent))


def _read_trace(path: Path, file: IO[bytes], used: Used, allow_incomplete: bool, root: bool) -> list[Path]:
    """Adds a trace and returns where those of its children are. `root` is false for a child.

    A stream that gpt-hook wrote live has the segments of children behind that of their parent.
    """
    segment = _Segment(used)
    pid, forked, interrupted = 0, set(), set()
    children: list[Path] = []
    try:
        for record in stream.read_records(file, str(path)):
            if fault := records.check(record):
                raise MalformedError(fault, str(path))
            match record["kind"]:
                case "header":
                    if record["tool"] == "gpt-extract":  # nothing of its would count as used
                        raise MalformedError(
                            "no trace, but what gpt-extract wrote ('gpt-hook run' records one)", str(path)
                        )
                    if segment.open:
                        interrupted.add(pid)
                    segment.close()
                    segment, pid = _Segment(used), record["pid"]
                case "child":
                    if "path" in record:
                        children.append(path.parent / record["path"])
                    if record["how"] != "exec":
                        forked.add(record["pid"])
            segment.add(record)
        if segment.open:
            interrupted.add(pid)
        segment.close()
    except TruncatedError as error:
        segment.close()
        if not allow_incomplete:
            raise GptError(f"truncated trace ({error.fact}): --allow-incomplete uses it", error.where) from None
        used.warnings.append((error.where, f"truncated trace: {error.fact}"))
    if interrupted:
        fact = "interrupted trace (its process was killed): later use is unknown"
        if root and interrupted - forked and not allow_incomplete:
            raise GptError(f"{fact}; --allow-incomplete uses it", str(path))
        used.warnings.append((str(path), fact))
    return children


class _Segment:
    """What one segment said so far; ids are its own.

    Threads write chunks of their own, so a function can come before its module: both are kept until `close`.
    """

    def __init__(self, used: Used) -> None:
        self.open = False
        self._used = used
        self._modules: dict[int, dict[str, Any]] = {}
        self._libraries: dict[str, dict[str, Any]] = {}
        self._functions: list[tuple[str, int]] = []  # name, module
        self._lookups: list[tuple[int, str]] = []  # module, what

    def add(self, record: dict[str, Any]) -> None:
        used = self._used
        match record["kind"]:
            case "header":
                self.open = True
            case "end":
                self.open = False
            case "library":
                self._libraries[record["path"]] = record
            case "device":
                used.devices.add((record["arch"], record["runs"]))
            case "module":
                if "path" not in record and "sha256" in record:
                    used.images.setdefault(record["sha256"], set()).add(record.get("loader"))
                self._modules[record["id"]] = {key: record[key] for key in ("path", "offset") if key in record}
            case "function":
                self._functions.append((record["name"], record.get("module", -1)))
            case "lookup":
                self._lookups.append((record["module"], record["what"]))

    def close(self) -> None:
        """Adds what the functions and look-ups say of their modules, and the libraries."""
        used = self._used
        files = {module["path"] for module in self._modules.values() if "path" in module}
        for path, library in self._libraries.items():
            gpu = bool(library.get("gpu")) or path in files
            used.loaded[path] = Loaded(library["size"], library.get("build_id"), gpu)
        for name, number in self._functions:
            module = self._modules.get(number)
            origin = module.get("path", IN_MEMORY) if module is not None else None
            used.names[name] = used.names.get(name) or origin
        for number, what in self._lookups:
            module = self._modules.get(number, {})
            if "path" in module:
                path = module["path"]
                place = path, self._libraries.get(path, {}).get("build_id"), module.get("offset", 0)
                used.whole.add(place)
                if what != "variable":
                    used.listed.add(place)
            else:
                fact = f"module {number} was looked into ({what}) and lies in no file"
                used.warnings.append(("trace", f"{fact}: unless --scan finds its image, nothing can be kept for it"))
