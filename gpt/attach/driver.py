"""Find the functions of the driver to watch, in gpt-hook's table, and the files that contain them.

A uprobe belongs to an inode. So each file is opened once, here, through /proc/PID/map_files, and bpftrace gets the
descriptor. Any user can choose the path by which a process maps a file. So the path is compared with a pattern and
shown in messages, but it's never part of a program, and root doesn't open it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt.base.errors import GptError, MalformedError, MissingError, UsageError
from gpt.formats import elf
from gpt.formats.source import Source

LIBRARY = "libcuda.so.1"
DRIVER = re.compile(r"/libcuda\.so(\.[\w.]+)?( \(deleted\))?$")  # libcuda.so.1 is a link: the mapped file is .580.159
ELF, CLASS, BITS_64 = b"\x7fELF", 4, 2
WORD = re.compile(r"\w+", re.ASCII)  # no other text from outside may be part of a program
VALUE = re.compile(r"(\w+)=(\*?\w+)", re.ASCII)
SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
                   ("size", "<u8")])  # fmt: skip
MAX_SYMBOLS = 64 << 20  # bytes of the symbol table, and of its names
MAX_DRIVERS = 64  # each requires hundreds of probes, and any user can map any number of root's files under such a name
MAX_SYMBOL = 128  # bytes of a name that are read; the names of driver functions are shorter


class DriverFunction(NamedTuple):
    """A line of `gpt-hook functions`. `values` maps meanings to arguments, `*0` or `1`; `how` is for special cases."""

    symbol: str
    name: str
    type: str
    op: str
    values: dict[str, str]
    how: str | None


class DriverFile(NamedTuple):
    """A driver: an open descriptor, its name for people, and a path to it that no other user can have chosen."""

    file: int
    name: str
    place: str

    @property
    def id(self) -> tuple[int, int]:
        """Return device and inode."""
        status = os.fstat(self.file)
        return status.st_dev, status.st_ino


def read_functions(calls: str | None) -> list[DriverFunction]:
    """Return the functions that `calls` selects, in the syntax of gpt-hook. None selects waits, and calls whose
    arguments are recorded.

    Raises UsageError if gpt-hook doesn't know a word, and MissingError if there's no gpt-hook.
    """
    hook = os.environ.get("GPT_HOOK") or shutil.which("gpt-hook")
    if not hook:
        raise MissingError("not found: it knows the functions of the driver", "gpt-hook")
    words = ["--calls", calls if calls is not None else "all,-query"]
    try:
        done = subprocess.run([hook, "functions", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingError.of(error, hook) from None
    if done.returncode:
        raise UsageError(done.stderr.strip().removeprefix("gpt-hook: error: ") or f"exit {done.returncode}", "")
    found = [_parse(line.split()) for line in done.stdout.splitlines()]
    return [one for one in found if calls is not None or one.values or one.how or one.type == "sync"]


def _parse(words: list[str]) -> DriverFunction:
    found = [VALUE.fullmatch(word) for word in words[4:]]
    if not all(map(WORD.fullmatch, words[:4])) or not all(found):
        raise MissingError(f"answers '{' '.join(words)}', which is not a function", "gpt-hook functions")
    values = {one[1]: one[2] for one in found if one}
    how = values.pop("how", None)
    return DriverFunction(words[0], words[1], words[2], words[3], values, how)


def exports(file: int, name: str) -> set[str]:
    """Return the names of the functions in an open library. Raises GptError if the library can't be watched."""
    source = Source(name, file)
    try:
        if source.pread(0, 5) == ELF + b"\x01":
            raise GptError("a 32-bit library: it cannot be watched", name)
        sections = elf.parse_elf(source).sections
        table = next((one for one in sections if one.type == elf.SHT_DYNSYM), None)
        if table is None or not table.link < len(sections):
            raise GptError("has no symbols", name)
        strings = sections[table.link]
        if table.size > MAX_SYMBOLS or strings.size > MAX_SYMBOLS:
            raise GptError("its table of symbols is too large", name)
        symbols = np.frombuffer(source.pread(table.offset, table.size // SYMBOL.itemsize * SYMBOL.itemsize), SYMBOL)
        names = source.pread(strings.offset, strings.size)
    except MalformedError:
        raise GptError("not a shared library", name) from None
    starts = symbols["name"][symbols["section"] != 0].tolist()
    found = (names[start : start + MAX_SYMBOL].partition(b"\0")[0] for start in starts)
    return {one.decode("ascii", "replace") for one in found}


def open_library(path: str) -> DriverFile:
    """Open a library that the user has named. Raises GptError if that fails."""
    try:
        file = _open_regular(path)
    except (OSError, ValueError):
        file = None
    if file is None:
        raise MissingError("not a readable regular file", path)
    return DriverFile(file, path, os.path.abspath(path))


def _open_regular(path: str) -> int | None:
    """Open a file for reading. Return None if it isn't a regular file: opening a device or a pipe can block or have
    side effects. O_NONBLOCK is for regular files: their owner can hold a lease, which blocks others for 45 seconds.

    Raises OSError; ValueError for an impossible path; and MissingError if no descriptor is left.
    """
    with _counted(path):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(place).st_mode):
                return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)
    return None


@contextmanager
def _counted(where: object) -> Iterator[None]:
    """Raise MissingError if there are no descriptors left: skipping this file would mean skipping every later one,
    too.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise MissingError(
                f"{error.strerror}: raise the limit (ulimit -n), or name one --library", str(where)
            ) from None
        raise


def find_driver(pid: int) -> list[DriverFile]:
    """Return the drivers that a process has mapped. Raises GptError if it hasn't mapped any, or can't be watched."""
    where = f"process {pid}"
    folder = Path(f"/proc/{pid}")
    if not folder.exists():
        raise GptError("no such process", where)
    try:
        found_id = re.search(r"^Tgid:\s*(\d+)$", (folder / "status").read_text(errors="replace"), re.M)
        if found_id and int(found_id[1]) != pid:  # the folders of threads exist, but aren't listed
            raise GptError(f"a thread of process {found_id[1]}: name that", where)
        maps = _read_maps(folder)
    except PermissionError:
        denied = "cannot be read: permission denied (other user namespace, or ptrace restrictions)"
        fact = "root is needed" if os.geteuid() else denied
        raise MissingError(fact, where) from None
    except OSError as error:
        raise GptError.of(error, where) from None
    if not maps:
        raise GptError("has ended, or is a thread of the kernel", where)
    found = Drivers()
    for one in iter_files(pid, maps):
        found.add(one)
    if found.files:
        return found.files
    if any(DRIVER.search(line) for line in maps.split("\n")):
        raise MissingError(f"has {LIBRARY} mapped, but it can't be opened", where)
    with open(folder / "exe", "rb") as file:
        head = file.read(5)
    if head.startswith(ELF) and head[CLASS] != BITS_64:
        raise GptError("a 32-bit program: it cannot be watched", where)
    linker = re.search(r"/(ld-linux|ld-musl|ld-)[^/]*\.so", maps) or "libc.so" in maps
    raise GptError(
        f"does not have {LIBRARY} mapped: it has not used the driver yet"
        if linker
        else f"a statically linked program, without {LIBRARY}: it cannot be watched",
        where,
    )


def _read_maps(folder: Path) -> str:
    return (folder / "maps").read_bytes().decode(errors="surrogateescape")  # not in text mode: a path may contain \r


def iter_files(pid: int, maps: str) -> Iterator[DriverFile]:
    """Open the drivers in the mappings of a process, one at a time, because a file can be mapped thousands of times."""
    for line in maps.split("\n"):  # not splitlines, because the kernel escapes no other line ends
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and DRIVER.search(fields[5]):
            place = f"/proc/{pid}/map_files/{_range(fields[0])}"
            file = _open_mapped(place, f"/proc/{pid}/root{fields[5]}", fields[3], fields[4])
            if file is not None:
                yield DriverFile(file, fields[5], place)


class Drivers:
    """Drivers to watch, each file once."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], DriverFile] = {}

    def add(self, one: DriverFile) -> None:
        """Add an open file, or close it if it has been added before."""
        if self._files.setdefault(one.id, one) is not one:
            os.close(one.file)

    @property
    def files(self) -> list[DriverFile]:
        """Return them all."""
        return [*self._files.values()]


def _open_mapped(place: str, path: str, device: str, inode: str) -> int | None:
    """Open the file of a mapping. Return None if the process has ended, or if the file can't be opened."""
    try:
        return _open_regular(place)
    except PermissionError as error:
        if not os.geteuid() and error.errno == errno.EPERM:  # EACCES: a file that not even root may read, as of FUSE
            fact = f"{error.strerror}: root lacks CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, as in a container"
            raise MissingError(fact, place) from None
    except OSError:
        return None
    try:
        return _open_same(path, device, inode)
    except (OSError, ValueError):
        return None


def _open_same(path: str, device: str, inode: str) -> int | None:
    """Open the file of a mapping by its path, if it's still the same file. Raises the same errors as _open_regular."""
    file = _open_regular(path)
    if file is not None:
        status = os.fstat(file)
        if f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino}" != f"{device} {inode}":
            os.close(file)
            return None
    return file


def _range(text: str) -> str:
    """Convert an address range in /proc/PID/maps, which has leading zeros, to the form that map_files uses."""
    return "-".join(f"{int(end, 16):x}" for end in text.split("-"))


def find_all() -> tuple[list[DriverFile], list[str]]:
    """Open the drivers that belong to root, if any process has mapped them or the dynamic linker knows them, each file
    once.

    Also return the names of drivers that belong to other users. If bpftrace can't attach to one of its functions, it
    doesn't attach to any, and another user's file can be made in such a way.

    Raises MissingError if not all of them can be opened, and GptError if there are too many.
    """
    found = Drivers()
    foreign: dict[tuple[int, int], str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                with _counted(folder):
                    maps = _read_maps(folder)
            except OSError:
                continue
            for one in iter_files(int(folder.name), maps):
                status = os.fstat(one.file)
                if status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    found.add(one)
                else:
                    if len(foreign) < MAX_DRIVERS:
                        foreign[one.id] = one.name
                    os.close(one.file)
                if len(found.files) > MAX_DRIVERS:
                    fact = f"more than {MAX_DRIVERS} different files are mapped by this name: name one --library"
                    raise GptError(fact, LIBRARY)
    for path in _cached():
        found.add(open_library(path))
    return found.files, [*foreign.values()]


def _cached() -> list[str]:
    """Return the 64-bit driver in the dynamic linker's cache."""
    command = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        text = subprocess.run([command, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    paths = re.findall(rf"^\s*{re.escape(LIBRARY)} \(libc6,x86-64[^)]*\) => (\S+)$", text, re.M)
    return [path for path in paths if os.path.exists(path)]
