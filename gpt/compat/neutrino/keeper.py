"""The last stage of the pipeline that weaves probes for gpt-neutrino: it keeps the code of each kernel.

A request is a `module` record that lists the kernels to return. Its results come after it, up to a `sync`. Each kernel
gets a folder below the first argument. Its name consists of the kernel and the image, so that the reader of the trace
can find it if the trace has a `module` with the same image. That isn't always the case: the driver may have linked the
image, or its digest may be missing from the trace. So the folder also gets a second name, made from the process and the
module. Everything is written before the `sync` is passed on, and so before the kernel is launched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.base import cli
from gpt.base.cache import make_private
from gpt.base.keep import kept_in
from gpt.base.outputs import replacing
from gpt.stream.reasons import find_reason
from gpt.stream.stage import Stage

Record = dict[str, Any]

CODE = "code"  # below the folder of the run; it's also GPT_KEEP for the other stages
FAILURE = "failure.txt"
SMALL = 4 << 20  # bytes; for larger images in files, traces have no digest
BLOCK = 1 << 20


def find_kept(folder: Path, kernel: str, pid: int, module: Record) -> Path | None:
    """Return the folder of a kernel. `module` is its record in the trace of the process."""
    names = [module["sha256"]] if "sha256" in module else []
    names += [f"{module['path']}:{module.get('offset', 0)}"] if "path" in module else []
    names += [f"{pid}:{module['id']}"] if "id" in module else []
    return next((path for name in names if (path := _folder(folder, kernel, name)).is_dir()), None)


def _folder(folder: Path, kernel: str, image: str) -> Path:
    text = f"{kernel}\0{image}".encode(errors="surrogateescape")
    return folder / CODE / hashlib.sha256(text).hexdigest()[:32]


class _Question:
    """A module that was requested, and the results for it."""

    def __init__(self, module: Record) -> None:
        self.module = module
        self.files: dict[str, dict[str, bytes]] = {kernel: {} for kernel in module.get("only", ())}
        self.texts: dict[str, bytes] = {}  # with probes, by kernel
        self.said: list[str] = []

    def add(self, record: Record) -> None:
        """Add a result."""
        match record["kind"]:
            case "ptx" if "original" in record and record["kernels"]:
                kernel = record["kernels"][0]
                self.texts[kernel] = record["data"]
                self._of(kernel).update({"pruned.ptx": record["original"], "probed.ptx": record["data"]})
            case "ptx":  # it contains no probe
                for kernel in self.files.keys() & set(record["kernels"]):
                    self._of(kernel)["original.ptx"] = record["data"]
            case "cubin" | "object" if set(record["kernels"]) & self.texts.keys():
                made = {"probed.bin": record["data"], "pruned.bin": record.get("original", b"")}
                self._of(record["kernels"][0]).update(made)
            case "kernel" if reason := find_reason(record):
                self.said.append(f"{record['name']}: left alone, {reason}")
            case "diag":
                self.said.append(": ".join(record[key] for key in ("level", "where", "text") if record[key]))

    def _of(self, kernel: str) -> dict[str, bytes]:
        return self.files.setdefault(kernel, {})


class Keeper:
    """Keeps the results of a stream in folders below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._questions: list[_Question] = []

    def handle(self, record: Record) -> tuple[Record]:
        """Pass a record on."""
        if record["kind"] == "module":
            self._questions.append(_Question(record))
        elif self._questions:
            self._questions[-1].add(record)
        return (record,)

    def settle(self) -> Iterable[Record]:
        """Write the results. If that fails for one, the reader of the trace reports that it's missing."""
        questions, self._questions = self._questions, []
        for question in questions:
            with suppress(OSError):
                self._keep(question)
        return ()

    def _keep(self, question: _Question) -> None:
        make_private(self._folder / CODE)
        names = list(_name_image(question.module))
        for kernel, files in question.files.items():
            first, *others = [_folder(self._folder, kernel, name) for name in names]
            make_private(first)
            for other in others:
                if other.is_symlink():  # it may have been created before exec(3)
                    other.unlink()
                with suppress(FileExistsError):
                    other.symlink_to(first.name)
            self._keep_image(question.module, names[0], first / "original.bin")
            files |= self._read_texts(kernel, question.texts.get(kernel))
            if "probed.bin" not in files:
                files[FAILURE] = "".join(f"{line}\n" for line in question.said).encode(errors="backslashreplace")
            for name, data in files.items():
                with replacing(first / name, 0o600) as file:
                    file.write(data)

    def _read_texts(self, kernel: str, text: bytes | None) -> dict[str, bytes]:
        """Read the whole module, and what the assembler reported about it, with and without probes."""
        found: dict[str, bytes] = {}
        if text is not None:
            folder = kept_in(self._folder, kernel, text)
            for name in ("original.ptx", "ptxas.txt", "ptxas-pruned.txt"):
                with suppress(FileNotFoundError):
                    found[name] = (folder / name).read_bytes()
        return found

    def _keep_image(self, module: Record, name: str, path: Path) -> None:
        """Store the image, once for all of its kernels."""
        first = self._folder / CODE / f"image.{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}"
        if not first.exists():
            with replacing(first, 0o600) as file:
                for block in _iter_image(module):
                    file.write(block)
        with suppress(FileExistsError):
            os.link(first, path)


def _iter_image(module: Record) -> Iterator[bytes]:
    if "data" in module:
        yield module["data"]
        return
    left = module.get("size", 1 << 62)
    with open(module["path"], "rb") as file:
        file.seek(module.get("offset", 0))
        while left and (block := file.read(min(left, BLOCK))):
            left -= len(block)
            yield block


def _name_image(module: Record) -> Iterator[str]:
    """Yield names that identify an image: its digest, or its position in a file."""
    in_file = "path" in module and not module["path"].startswith("/proc/")
    if not in_file or module.get("size", SMALL + 1) <= SMALL:
        digest = hashlib.sha256()
        for block in _iter_image(module):
            digest.update(block)
        yield digest.hexdigest()
    if in_file:
        yield f"{module['path']}:{module.get('offset', 0)}"
    if "of" in module:
        yield module["of"]


def copy_kept(source: Path, target: Path) -> None:
    """Copy a file, using a hard link if possible."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError:
        with open(source, "rb") as data, replacing(target) as file:
            shutil.copyfileobj(data, file)


def keep(folder: Path) -> int:
    """Pass a stream on, and keep its results below a folder."""
    keeper = Keeper(folder)
    return Stage("gpt-neutrino", stream=True).filter(keeper.handle, settle=keeper.settle)


if __name__ == "__main__":
    sys.exit(cli.run("gpt-neutrino", keep))
