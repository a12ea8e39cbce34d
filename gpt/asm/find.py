"""Where ptxas is, and which of several is right for a module.

The first of these that answers is taken: the one that `--ptxas` names, `GPT_PTXAS`, `PATH`, `CUDA_HOME/bin`, the
wheel nvidia-cuda-nvcc, Triton's own. For a module whose PTX version or target it does not know the newest of the
others that does is taken. The one of `--ptxas` is never replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpt.asm.targets import GpuTarget
from gpt.base.arch import find_arch
from gpt.base.errors import GptError, MissingError
from gpt.base.install import install_command

PATIENCE = 30  # seconds for an answer to --version
_RELEASE = re.compile(r"\bV(\d+)\.(\d+)\.(\d+)")
_ISA = re.compile(r"^(\d+)\.(\d+)$", re.MULTILINE)
_NAMED = re.compile(r"'(sm_\w+)'")


@dataclass(frozen=True)
class Tool:
    """A ptxas. `identity` is all that it says of its version, which differs between builds."""

    path: str
    release: tuple[int, ...]
    identity: str
    versions: frozenset[tuple[int, int]]  # of PTX, empty if it does not say
    targets: frozenset[str]

    @property
    def name(self) -> str:
        """How messages call it."""
        return "ptxas " + ".".join(map(str, self.release))

    def lacks(self, version: tuple[int, int] | None, target: GpuTarget) -> str | None:
        """What it does not know of these, or None."""
        if self.versions and version and version > max(self.versions):
            return f"PTX {version[0]}.{version[1]}"
        return str(target) if self.targets and str(target) not in self.targets else None


class Tools:
    """The ptxas there are, in order. Each is asked for its version once, when it is first needed."""

    def __init__(self, given: str | None, environment: Mapping[str, str] = os.environ) -> None:
        """Raises MissingError if the one that was named does not work."""
        self._places = iter([_named(given, "--ptxas")] if given else _iter_places(environment))
        self._found: list[Tool] = []
        self._seen: set[str] = set()
        self._failed = ""
        self._lock = threading.Lock()
        self._only = given is not None
        self._named = given or environment.get("GPT_PTXAS")

    def first(self) -> Tool:
        """The one that is used for whatever it knows. Raises MissingError if there is none."""
        with self._lock:
            return self._first(self._iter_tools())

    def choose(self, version: tuple[int, int] | None, target: GpuTarget) -> Tool:
        """The first one, or the newest that knows a PTX version and a target which the first does not.

        Raises MissingError.
        """
        with self._lock:
            tools = self._iter_tools()
            first = self._first(tools)
            lack = first.lacks(version, target)
            if lack is None:
                return first
            fit = [tool for tool in tools if tool.lacks(version, target) is None]
            if fit:
                return max(fit, key=lambda tool: tool.release)
        others = "" if self._only or len(self._found) == 1 else f", nor does any other of {len(self._found)}"
        plain = sorted(arch for arch in map(find_arch, first.targets) if arch and not arch.suffix)
        known = f" (it knows {', '.join(map(str, plain))})" if lack == str(target) and plain else ""
        raise MissingError(f"{first.name} ({first.path}) does not know {lack}{known}{others}: install one that does")

    def _first(self, tools: Iterator[Tool]) -> Tool:
        if first := next(tools, None):
            return first
        how = f"give --ptxas FILE, or install one: {install_command('nvidia-cuda-nvcc')}"
        raise MissingError(f"{self._failed or 'no ptxas'}: {how}")

    def _iter_tools(self) -> Iterator[Tool]:
        yield from self._found
        for path in self._places:
            real = os.path.realpath(path)
            if real in self._seen:
                continue
            self._seen.add(real)
            try:
                tool = _ask(path)
            except GptError as error:
                if self._named and not self._found:  # it comes first, and another one in its place would be a surprise
                    raise MissingError(str(error)) from None
                self._failed = self._failed or str(error)
                continue
            self._found.append(tool)
            yield tool


def iter_files(given: str | None, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Path, size and time of change, in ns, of each tool that may be used; none is run.

    Raises MissingError if one that was named is not there.
    """
    compiler = shutil.which(split_compiler(environment)[0])
    places = [_named(given, "--ptxas")] if given else _iter_places(environment)
    for path in dict.fromkeys(os.path.realpath(path) for path in [*places, *filter(None, [compiler])]):
        status = os.stat(path)
        yield f"{path} {status.st_size} {status.st_mtime_ns}"


def split_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words of the C compiler's command, of `CC` or `cc`. Raises MissingError if a quote isn't closed."""
    try:
        return shlex.split(environment.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise MissingError(str(error).lower(), f"CC={environment['CC']}") from None


def _named(path: str, what: str) -> str:
    """A ptxas that somebody named, as a shell would find it."""
    found = shutil.which(path)
    if found is None:
        raise MissingError(f"{what}: no such executable", path)
    return os.path.abspath(found)


def _iter_places(environment: Mapping[str, str]) -> Iterator[str]:
    """Executables called ptxas, in order."""
    if given := environment.get("GPT_PTXAS"):
        yield _named(given, "GPT_PTXAS")
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        if folder and (found := shutil.which("ptxas", path=folder)):
            yield os.path.abspath(found)
    folders = [Path(home, "bin") for home in (environment.get("CUDA_HOME"), environment.get("CUDA_PATH")) if home]
    for place in _package("nvidia"):  # cu13 and later, and the wheels of CUDA 12 and 11
        folders += [*sorted(place.glob("cu[0-9]*/bin"), reverse=True), place / "cuda_nvcc" / "bin"]
    for place in _package("triton"):
        folders += [place / "backends" / "nvidia" / "bin", *place.glob("**/third_party/cuda/bin")]
    for place in folders:
        for path in sorted(place.glob("ptxas*")):  # Triton has a ptxas-blackwell beside it
            if os.access(path, os.X_OK) and path.is_file():
                yield str(path)


def _package(name: str) -> list[Path]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _ask(path: str) -> Tool:
    """What a ptxas says of itself. Raises GptError if it does not answer as one."""
    identity = _output(path, "--version")
    found = _RELEASE.search(identity)
    if not found:
        raise GptError("its answer is not that of ptxas", path)
    versions = frozenset((int(a), int(b)) for a, b in _ISA.findall(_output_if_any(path, "--list-version")))
    targets = frozenset(_NAMED.findall(_output_if_any(path, "--help")))
    return Tool(path, tuple(map(int, found.groups())), identity, versions, targets)


def _output_if_any(path: str, option: str) -> str:
    """Nothing from one that does not know the option (ptxas 12.8 has no --list-version): the module will show."""
    try:
        return _output(path, option)
    except GptError:
        return ""


def _output(path: str, option: str) -> str:
    command = [path, option]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise GptError(f"does not answer {option} within {PATIENCE} s", path) from None
    except OSError as error:
        raise GptError.of(error, path) from None
    if done.returncode:
        raise GptError(f"fails on {option}: status {done.returncode}", path)
    return done.stdout.decode(errors="replace")
