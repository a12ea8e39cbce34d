"""Load probe files of any format into the objects of model.py."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpt.base.errors import MalformedError, MissingError, UsageError
from gpt.probe.model import ProbeFile
from gpt.probe.read.toml import parse_toml

_PACKAGED = Path(__file__).parents[2] / "_probes"  # where an installed package has them
BUILTIN = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[3] / "probes"
MAX_SOURCE = 1 << 20  # bytes of a probe file


def find_probe(name: str) -> Path:
    """Find the file that `-p` names: a path, or the name of a built-in probe. Raises MissingError."""
    path = Path(name)
    if path.is_file() or path.is_fifo():  # a pipe, such as <(...) in a shell
        return path
    if (built_in := BUILTIN / f"{name}.toml").is_file() and path.name == name:
        return built_in
    known = ", ".join(sorted(path.stem for path in BUILTIN.glob("*.toml")))
    raise MissingError(f"no such probe file{f', and no built-in probe ({known})' if known else ''}", name)


def load_probes(path: Path) -> ProbeFile:
    """Read a probe file, in TOML or Python. Raises MalformedError and GptError, with file and line, and
    MissingError.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SOURCE + 1)
    except FileNotFoundError:
        raise MissingError("no such probe file", str(path)) from None
    if len(data) > MAX_SOURCE:
        raise MalformedError(f"larger than {MAX_SOURCE >> 20} MiB", str(path))
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError("not UTF-8", f"{path}:{line}") from None
    if path.suffix == ".py":
        from gpt.probe.read.python import compile_python

        found = compile_python(source, str(path))
    else:
        found = parse_toml(source, str(path))
    return replace(found, callback=found.callback and _find_callback(found.callback, path))


def _find_callback(name: str, probe: Path) -> str:
    """Find the file of a callback: in the folder of the probe file, or else among the built-in probes.

    A name without a suffix and a slash is an analysis. If the file doesn't exist, or if it's the probe file itself, the
    name is returned as it is.
    """
    if "/" in name or Path(name).suffix:
        for folder in (probe.parent, BUILTIN):
            with suppress(OSError, ValueError):  # not a valid file name
                if (found := (folder / name).resolve()).is_file() and not found.samefile(probe):
                    return str(found)
    return name


def load_all(probes: list[str]) -> list[ProbeFile]:
    """Load probe files, each once. Raises UsageError if two of them have the same name in records."""
    paths: dict[str, Path] = {}
    for path in map(find_probe, probes):
        if not path.samefile(paths.setdefault(path.stem, path)):
            first = f"'{paths[path.stem]}' and '{path}'"
            raise UsageError(f"{first} are both '{path.stem}', as records name their probes: rename one")
    return list(map(load_probes, paths.values()))
