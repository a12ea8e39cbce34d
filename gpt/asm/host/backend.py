"""The back end for the simulated device: translate PTX to C, and compile it to a shared object."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar

import gpt
from gpt.asm.backend import AssembledModule, Faults, Options
from gpt.asm.find import split_compiler
from gpt.asm.processes import KILLED, SHORTAGES, Processes, signal_name
from gpt.base.errors import GptError, MissingError, UsageError
from gpt.base.scratch import scratch_folder

HEADERS = Path(gpt.__file__).parent / "_runtime" / "host"
FLAGS = (
    *("-std=gnu11", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-Wl,--build-id=none"),
    *("-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno"),
    *("-fno-stack-protector", "-fno-stack-clash-protection", "-fcf-protection=none", "-fno-asynchronous-unwind-tables"),
)
LEVEL = 1  # -O2 would take twice as long
MAX_FAULTS = 5  # reported per module
_V3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}  # x86-64-v3, as /proc/cpuinfo calls its features
_PATIENCE = 30  # seconds for an answer to --version


class HostTarget:
    """The processor of this machine, which is the only target of this back end."""

    family = "host"

    def __str__(self) -> str:
        return "host"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostTarget)

    def __hash__(self) -> int:
        return hash("host")


class Host:
    """The C compiler as a back end."""

    kind: ClassVar[str] = "object"

    def __init__(self, options: Options) -> None:
        """Find the runtime. Raises MissingError if it isn't built."""
        self._flags = [f"-O{LEVEL if options.level is None else min(options.level, 3)}", *FLAGS, *_machine()]
        if not (HEADERS / "abi.h").is_file():
            raise MissingError("not built: run 'make runtime'", str(HEADERS))
        self._timeout = options.timeout
        self._checks = options.check
        self._processes = Processes(options.timeout)

    @staticmethod
    def parse_target(word: str) -> HostTarget:
        """Parse `host`. Raises UsageError."""
        if word != "host":
            raise UsageError(f"not a target: '{word}' (sm_90, for example, or host)")
        return HostTarget()

    def target_for(self, text: bytes, target: HostTarget) -> HostTarget:
        """Return the target unchanged. Raises MissingError if there's no C compiler."""
        find_compiler()
        return target

    def key(self, text: bytes, target: HostTarget) -> list[bytes]:
        """Return the version of the compiler, its flags, and a hash of the headers and of the code that generates C."""
        flags = "--check" if self._checks else " ".join(self._flags)
        return [find_compiler()[1].encode(), flags.encode(), _sources()]

    def make(self, text: bytes, name: str, target: HostTarget) -> AssembledModule:
        """Compile a module. Raises Faults if it contains something unsupported."""
        from gpt.asm.host.module import ModuleWriter

        code = ModuleWriter(text, name)
        source = code.write()
        if code.faults:
            found = list(code.faults)
            more = len(found) - MAX_FAULTS
            raise Faults(found[:MAX_FAULTS] + ([(name, f"for host: {more} more of these")] if more > 0 else []))
        kernels = {item.name: code.needs(item.name) for item in code.module.entries}
        image, said = (b"", b"") if self._checks else self._compile(source, name)
        return AssembledModule(image, kernels, [], said)

    def stop(self) -> None:
        """End running jobs and start no more."""
        self._processes.stop()

    def _compile(self, source: str, name: str) -> tuple[bytes, bytes]:
        """Return the shared object, and the command line followed by the output of the compiler."""
        words, _ = find_compiler()
        tool = words[0]
        with scratch_folder("gpt-asm-") as folder:
            folder.write("module.c", source.encode("latin-1"))
            command = [*words, *self._flags, "-iquote", str(HEADERS), "module.c", "-o", "module.so", "-lm"]
            try:
                status, output = self._processes.run(command, folder.working)
            except TimeoutError:
                raise GptError(f"{tool} took over {self._timeout:g} s and was killed (--timeout)", name) from None
            image = b"" if status else folder.read("module.so")
        if status == -signal.SIGKILL or (status and b"Killed signal terminated program" in output):
            raise GptError(KILLED, tool)
        if status < 0:
            raise GptError(f"{tool} crashes on its C: {signal_name(-status)}", name)
        if not image:
            for shortage in SHORTAGES:
                if shortage.encode() in output:
                    raise GptError(shortage, tool)
            said = next(
                (line for line in output.decode(errors="replace").splitlines() if "error" in line), "no message"
            )
            raise GptError(f"{tool} fails on its C: status {status}, {said}", name)
        return image, f"{shlex.join(command)}\n".encode() + output


@cache
def find_compiler() -> tuple[list[str], str]:
    """Return the command of the C compiler (`CC` or `cc`) as words, and the first line that it prints for `--version`.

    Raises MissingError.
    """
    words = split_compiler()
    path = shutil.which(words[0])
    if not path:
        raise MissingError("no C compiler (Debian: apt-get install gcc libc6-dev)", words[0])
    command = [path, *words[1:], "--version"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
    except OSError as error:
        if os.strerror(error.errno or 0) in SHORTAGES:
            raise GptError.of(error, path) from None
        done = None
    except subprocess.TimeoutExpired:
        done = None
    if not done or done.returncode:
        raise MissingError("does not say its version", path)
    return [path, *words[1:]], done.stdout.partition(b"\n")[0].decode(errors="replace")


def _machine() -> list[str]:
    """Return the options that make the compiler use the instruction set of this machine."""
    if platform.machine() != "x86_64":
        return []
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return ["-march=x86-64-v3"] if _V3.issubset(flags.split()) else []


@cache
def _sources() -> bytes:
    digest = hashlib.sha256()
    for path in _iter_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _iter_sources() -> Iterator[Path]:
    """Yield the files that the generated C depends on: the headers, this folder, and the PTX parser."""
    here = Path(__file__).parent
    yield from sorted(HEADERS.glob("*.h"))
    yield from sorted(here.glob("*.py"))
    yield from sorted(path for path in (here.parents[1] / "ptx").iterdir() if path.is_file())
