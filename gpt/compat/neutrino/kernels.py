"""Write `kernel/N_SHA1/`: the code of a launched kernel at each step, as the pipeline's keeper stored it.

original.bin original.ptx   the image that the program loaded, or had the driver link; its PTX
pruned.ptx pruned.bin       the part of it that the kernel needs; its cubin
probed.ptx probed.bin       that part with probes; its cubin
process.log                 a log: ptxas's reports, the generated reader, or why there are no probes
kernel.info                 name; parameters; saving probes; a line `level,bytes` for each; the analyze hook
read.py                     the generated reader
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt.base.outputs import replacing
from gpt.compat.neutrino.keeper import FAILURE, copy_kept, find_kept
from gpt.compat.neutrino.reader import ReadMap, make_reader
from gpt.compat.neutrino.results import fields_of, pack_fields

Record = dict[str, Any]

CODE = ("original.bin", "original.ptx", "pruned.ptx", "probed.ptx", "pruned.bin", "probed.bin")
LEVELS = {"thread": 0, "warp": 1, "block": 2}


class Settings(NamedTuple):
    """The options of a run: the names of kernels to keep and drop, the hook, and the bytes per record for each map.

    `kept` is the folder in which the pipeline keeps its output. `benchmark` says that nothing is saved, and `second`
    that the probe file is in the format of Neutrino's second generation.
    """

    kernels: str
    filter: str
    hook: str
    sizes: Mapping[str, int]
    kept: Path
    benchmark: bool
    second: bool = False


class KernelFolders:
    """The kernel folders of a process."""

    def __init__(self, folder: Path, pid: int, settings: Settings) -> None:
        self._folder = folder
        self._pid = pid
        self._settings = settings
        self._count = 0
        self.missing = False  # True if a file is missing for a kernel with probes

    def add(self, name: str, module: Record, kernel: Record | None, maps: Sequence[Record], reason: str) -> Path:
        """Write the folder of the next kernel. `reason` says why it has no probes. Raises OSError."""
        digest = hashlib.sha1(name.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
        folder = self._folder / f"{self._count}_{digest}"
        self._count += 1
        folder.mkdir()
        kept = find_kept(self._settings.kept, name, self._pid, module)
        for file in CODE:
            if kept and (kept / file).exists():
                copy_kept(kept / file, folder / file)
            else:
                self.missing |= kernel is not None
        reader = make_reader([self._read_map(record) for record in maps], self._settings.second) if kernel else ""
        texts = {"process.log": self._log(name, module, kept, kernel, reason, reader)}
        if kernel:
            texts |= {"kernel.info": self._info(name, kernel, maps), "read.py": reader}
        for file, text in texts.items():
            with replacing(folder / file) as out:
                out.write(text.encode(errors="surrogateescape"))
        return folder

    def _read_map(self, record: Record) -> ReadMap:
        fields = fields_of(record)
        single = record["type"] != "log" and record["capacity"] == 1
        return ReadMap(record["name"], record["level"], fields, self.bytes_of(record), single)

    def bytes_of(self, record: Record) -> int:
        """Return the size of a map's record in a `.bin`."""
        fields = [(name, f"<{letter}") for name, letter in fields_of(record)]
        return pack_fields(fields, self._settings.sizes.get(record["name"], 0)).itemsize

    def _info(self, name: str, kernel: Record, maps: Sequence[Record]) -> str:
        lines = [name, str(len(kernel.get("params", ()))), str(len(maps))]
        lines += [f"{LEVELS[record['level']]},{self.bytes_of(record)}" for record in maps]
        return "\n".join([*lines, self._settings.hook]) + "\n"

    def _log(
        self, name: str, module: Record, kept: Path | None, kernel: Record | None, reason: str, reader: str
    ) -> str:
        wanted = [part.split(":") for part in (self._settings.filter, self._settings.kernels) if part]
        lines = [" ".join(map(str, wanted or [[""]])), "[decompile] via gpt-extract --ptx", name]
        if kept is None:
            place = f"{module['path']}+{module.get('offset', 0):#x}" if "path" in module else module.get("loader", "")
            lines.append(f"[code] {module.get('type', '')} {place}: not taken apart")
        else:
            for what, report in (("pruned", "ptxas-pruned.txt"), ("probed", "ptxas.txt")):
                if (kept / f"{what}.ptx").exists():
                    lines += [f"[assemble] via gpt-asm {what}.ptx -o {what}.bin", _read(kept / report)]
            lines.append(_read(kept / FAILURE))
        lines.append(reader if kernel else f"[unprobed] {reason}")
        return "\n".join(line.rstrip("\n") for line in lines if line) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return ""
