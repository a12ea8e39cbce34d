"""Find ptxas, and choose one for each module if several are installed.

The search order is `--ptxas`, `GPT_PTXAS`, `PATH`, `CUDA_HOME/bin`, `CUDA_PATH/bin`, the wheel nvidia-cuda-nvcc, and
Triton's copy. The first ptxas to answer `--version` is the default. If it doesn't support the PTX version or the target
of a module, the newest ptxas with support for both is used instead. With `--ptxas`, only that one is used.

gpt-hook waits for `gpt-asm --tools` before each run with probes. So modules that are needed only to run a ptxas are
imported where it's run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpt.base.errors import GptError, MissingError

if TYPE_CHECKING:
    from gpt.asm.targets import GpuTarget

PATIENCE = 30  # seconds that it may take to answer --version
_RELEASE = re.compile(r"\bV(\d+)\.(\d+)\.(\d+)")
_ISA = re.compile(r"^(\d+)\.(\d+)$", re.MULTILINE)
_NAMED = re.compile(r"'(sm_\w+)'")


class Tool(NamedTuple):
    """An installed ptxas. `identity` is what it prints for --version, which is different for each build."""

    path: str
    release: tuple[int, ...]
    identity: str
    versions: frozenset[tuple[int, int]]  # PTX versions that it supports, or nothing if it can't list them
    targets: frozenset[str]

    @property
    def name(self) -> str:
        """The name to use in messages."""
        return "ptxas " + ".".join(map(str, self.release))

    def lacks(self, version: tuple[int, int] | None, target: GpuTarget) -> str | None:
        """Return the version or the target if this ptxas doesn't support it, or None if it supports both."""
        if self.versions and version and version > max(self.versions):
            return f"PTX {version[0]}.{version[1]}"
        return str(target) if self.targets and str(target) not in self.targets else None


class Tools:
    """The installed ptxas, in search order. Each of them is run only once, when it's first needed, to determine its
    version.
    """

    def __init__(
        self,
        given: str | None,
        environment: Mapping[str, str] = os.environ,
        hint: str = "give --ptxas FILE, or install one",
    ) -> None:
        """Search for ptxas. `hint` says what to do if there's none; the command that installs it follows. Raises
        MissingError if `given` (--ptxas) isn't an executable.
        """
        self._hint = hint
        self._places = iter([_named(given, "--ptxas")] if given else _iter_places(environment))
        self._found: list[Tool] = []
        self._seen: set[str] = set()
        self._failed = ""
        self._lock = threading.Lock()
        self._only = given is not None
        self._named = given or environment.get("GPT_PTXAS")

    def first(self) -> Tool:
        """Return the default ptxas. Raises MissingError if none is installed."""
        with self._lock:
            return self._first(self._iter_tools())

    def choose(self, version: tuple[int, int] | None, target: GpuTarget) -> Tool:
        """Return the default ptxas, or if it doesn't support the PTX version and the target, the newest ptxas with
        support for both.

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
        from gpt.base.arch import find_arch

        others = "" if self._only or len(self._found) == 1 else f"; none of {len(self._found)} installed does"
        plain = sorted(arch for arch in map(find_arch, first.targets) if arch and not arch.suffix)
        known = f" (it knows {', '.join(map(str, plain))})" if lack == str(target) and plain else ""
        raise MissingError(f"{first.name} ({first.path}) doesn't know {lack}{known}{others}: install a ptxas that does")

    def _first(self, tools: Iterator[Tool]) -> Tool:
        if first := next(tools, None):
            return first
        from gpt.base.install import install_command

        how = f"{self._hint}: {install_command('nvidia-cuda-nvcc')}"
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
                if self._named and not self._found:  # a ptxas that the user named is never replaced
                    raise MissingError(str(error)) from None
                self._failed = self._failed or str(error)
                continue
            self._found.append(tool)
            yield tool


def iter_files(given: str | None, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the path, size and modification time (in ns) of each compiler that may be used, without running any.

    Raises MissingError if the user named a ptxas that doesn't exist.
    """
    compiler = shutil.which(split_compiler(environment)[0])
    places = [_named(given, "--ptxas")] if given else _iter_places(environment)
    for path in dict.fromkeys(os.path.realpath(path) for path in [*places, *filter(None, [compiler])]):
        status = os.stat(path)
        yield f"{path} {status.st_size} {status.st_mtime_ns}"


def split_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of the C compiler, from `CC` or else `cc`, as words. Raises MissingError if a quote isn't
    closed.
    """
    try:
        return shlex.split(environment.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise MissingError(str(error).lower(), f"CC={environment['CC']}") from None


def _named(path: str, what: str) -> str:
    """Find a ptxas that the user named, in the same way as a shell would: by its path, or in PATH."""
    found = shutil.which(path)
    if found is None:
        raise MissingError(f"{what}: no such executable", path)
    return os.path.abspath(found)


def _iter_places(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the executables called ptxas, in search order."""
    if given := environment.get("GPT_PTXAS"):
        yield _named(given, "GPT_PTXAS")
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        if folder and (found := shutil.which("ptxas", path=folder)):
            yield os.path.abspath(found)
    folders = [Path(home, "bin") for home in (environment.get("CUDA_HOME"), environment.get("CUDA_PATH")) if home]
    for place in _package("nvidia"):  # cu13 and later, and the wheels for CUDA 12 and 11
        folders += [*sorted(place.glob("cu[0-9]*/bin"), reverse=True), place / "cuda_nvcc" / "bin"]
    for place in _package("triton"):
        folders += [place / "backends" / "nvidia" / "bin", *place.glob("**/third_party/cuda/bin")]
    for place in folders:
        for path in sorted(place.glob("ptxas*")):  # Triton also has a ptxas-blackwell there
            if os.access(path, os.X_OK) and path.is_file():
                yield str(path)


def _package(name: str) -> list[Path]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _ask(path: str) -> Tool:
    """Ask a ptxas for its version, and for the PTX versions and targets that it supports. Raises GptError if it doesn't
    answer like a ptxas.
    """
    identity = _output(path, "--version")
    found = _RELEASE.search(identity)
    if not found:
        raise GptError("its answer isn't ptxas's", path)
    versions = frozenset((int(a), int(b)) for a, b in _ISA.findall(_output_if_any(path, "--list-version")))
    targets = frozenset(_NAMED.findall(_output_if_any(path, "--help")))
    return Tool(path, tuple(map(int, found.groups())), identity, versions, targets)


def _output_if_any(path: str, option: str) -> str:
    """Return what an option prints, or an empty string if this ptxas doesn't know it (12.8 has no --list-version).

    A ptxas that can't list what it supports is used for every version and target; it reports an error if it can't
    assemble a module.
    """
    try:
        return _output(path, option)
    except GptError:
        return ""


def _output(path: str, option: str) -> str:
    import subprocess

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
