"""What is watched: functions of the driver, as gpt-hook knows them, and the files that have them.

A file is named by a path that its process would use, through /proc/PID/root if that is in a container, or by
/proc/PID/map_files if it was deleted: a uprobe belongs to the inode, whatever it is called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from gpt.errors import GptError, MissingError, UsageError

LIBRARY = "libcuda.so.1"
DRIVER = re.compile(r"/libcuda\.so(\.[\w.]+)?( \(deleted\))?$")  # libcuda.so.1 is a link: what is mapped is .580.159
ELF, CLASS, BITS_64 = b"\x7fELF", 4, 2


class DriverFunction(NamedTuple):
    """A line of `gpt-hook functions`: `values` are where arguments are by what they mean, `*0` or `1`; `how` others."""

    symbol: str
    name: str
    type: str
    op: str
    values: dict[str, str]
    how: str | None


class DriverFile(NamedTuple):
    """A driver that a process has mapped; `id` is that of the file, `path` one to open it by."""

    path: str
    id: tuple[int, int]


def read_functions(calls: str | None) -> list[DriverFunction]:
    """Functions that `calls` names, in gpt-hook's words; None: those with arguments that are recorded, and waits.

    Raises UsageError for a word that means nothing, MissingError if there is no gpt-hook.
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
    values = dict(word.split("=") for word in words[4:])
    how = values.pop("how", None)
    return DriverFunction(words[0], words[1], words[2], words[3], values, how)


def exports(path: str) -> set[str]:
    """The functions that a shared library has. Raises GptError if it is not one that can be watched."""
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            if elf.elfclass != 64:
                raise GptError("a 32-bit library: it cannot be watched", path)
            table = elf.get_section_by_name(".dynsym")
            if not isinstance(table, SymbolTableSection):
                raise GptError("has no symbols", path)
            return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
    except ELFError:
        raise GptError("not a shared library", path) from None
    except OSError as error:
        raise MissingError.of(error, path) from None


def find_driver(pid: int) -> list[DriverFile]:
    """The drivers that a process has mapped. Raises GptError if it has none, or cannot be watched."""
    where = f"process {pid}"
    folder = Path(f"/proc/{pid}")
    if not folder.exists():
        raise GptError("no such process", where)
    try:
        found_id = re.search(r"^Tgid:\s*(\d+)$", (folder / "status").read_text(errors="replace"), re.M)
        if found_id and int(found_id[1]) != pid:  # folders of threads are there, and not listed
            raise GptError(f"a thread of process {found_id[1]}: name that", where)
        maps = (folder / "maps").read_text(errors="surrogateescape")
    except PermissionError:
        fact = "root is needed" if os.geteuid() else "not ours to look at (user namespaces, ptrace)"
        raise MissingError(fact, where) from None
    except OSError as error:
        raise GptError.of(error, where) from None
    if not maps:
        raise GptError("has ended, or is a thread of the kernel", where)
    if found := files_in(pid, maps):
        return found
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


def files_in(pid: int, maps: str) -> list[DriverFile]:
    """The drivers among the mappings of a process, each file once."""
    found: dict[tuple[int, int], str] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and DRIVER.search(fields[5]):
            path, mapped = f"/proc/{pid}/root{fields[5]}", f"/proc/{pid}/map_files/{_range(fields[0])}"
            file = _identity(path)
            if file and _identity(fields[5]) == file:
                path = fields[5]  # it is the same file here
            file = file or _identity(path := mapped)
            if file:
                found.setdefault(file, path)
    return [DriverFile(path, file) for file, path in found.items()]


def _range(text: str) -> str:
    """A range of addresses as map_files spells it: /proc/PID/maps has leading zeros."""
    return "-".join(f"{int(end, 16):x}" for end in text.split("-"))


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at this place; None if there is none, or that which is mapped was deleted."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if not path.endswith("(deleted)") else None


def find_all() -> list[DriverFile]:
    """The drivers that any process has mapped, and that which the dynamic linker would find, each file once."""
    found: dict[tuple[int, int], DriverFile] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                maps = (folder / "maps").read_text(errors="surrogateescape")
            except OSError:
                continue
            for one in files_in(int(folder.name), maps):
                found.setdefault(one.id, one)
    for path in _cached():
        status = os.stat(path)
        found.setdefault((status.st_dev, status.st_ino), DriverFile(path, (status.st_dev, status.st_ino)))
    return list(found.values())


def _cached() -> list[str]:
    """Where the dynamic linker's cache has it, of 64 bits."""
    command = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        text = subprocess.run([command, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    paths = re.findall(rf"^\s*{re.escape(LIBRARY)} \(libc6,x86-64[^)]*\) => (\S+)$", text, re.M)
    return [path for path in paths if os.path.exists(path)]
