"""Choose the file to read for each library of a stream, and the file to write: in a folder, in place, or in a wheel."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import GptError, MissingError
from gpt.formats.paths import real_path
from gpt.patch.backup import follow_links
from gpt.patch.versions import Renaming, label_of
from gpt.patch.wheel import Wheels, split


class PatchPaths(NamedTuple):
    """The path of a library in the stream, the files to read and write, and the final name of the output."""

    path: Path
    source: Path
    target: Path
    name: str

    @property
    def is_member(self) -> bool:
        """Return whether the library was unpacked from a wheel."""
        return self.source != self.path


class Places:
    """The outputs of a run. `output` is their folder; if it's None, each library is replaced in place."""

    def __init__(self, output: Path | None, parents: bool = False, dry_run: bool = False, label: str = "") -> None:
        self.output = output
        self.renaming = Renaming(label)  # for wheels
        self.wheels: Wheels | None = None  # wheels with libraries of the stream
        self._parents = parents
        self._dry_run = dry_run
        self._taken: dict[Path, str] = {}  # output -> library
        self._by_arch: dict[str, Places] = {}

    @property
    def all(self) -> list[Places]:
        """Return these places, followed by the places for each --arch."""
        return [self, *self._by_arch.values()]

    def for_arch(self, arch: str) -> Places:
        """Return the places for the outputs of one --arch. Their wheels are named after it, unless there's a label.

        Raises MalformedError.
        """
        if arch not in self._by_arch:
            label = self.renaming.label or label_of(arch)
            self._by_arch[arch] = made = Places(self.output, self._parents, self._dry_run, label)
            made._taken = self._taken
        return self._by_arch[arch]

    def find(self, library: str) -> PatchPaths:
        """Return the place of a library.

        Raises MissingError if the library doesn't exist, and GptError if its output can't be written.
        """
        path = Path(library)
        if path.exists():
            target = self.take(path)
            return PatchPaths(path, path, target, str(target))
        if not (found := split(library)):
            raise MissingError(os.strerror(errno.ENOENT), library)
        # Members of a wheel are patched outside of it. The new wheel is written once all of its libraries are done.
        if self.output is None:
            raise GptError("lies in a wheel: use -o DIR", library)
        wheel, member = found
        self.wheels = self.wheels or Wheels()
        near = Path(tempfile.gettempdir()) if self._dry_run else self.output
        return PatchPaths(
            path,
            *self.wheels.add(wheel, member, near),
            str(self._destination(wheel, is_wheel=True) / self.renaming.member(member)),
        )

    def take(self, path: Path, is_wheel: bool = False) -> Path:
        """Return the output path for a file, and reserve it: in the folder, or the file to which all links lead.

        Raises GptError if this is the input, or the output of another file in this run.
        """
        target = self._destination(path, is_wheel)
        if self.output and real_path(target) == real_path(path):
            raise GptError("would overwrite the library itself: use --in-place", str(path))
        if target in self._taken:
            hint = ": --parents" if self.output and not self._parents else ""
            raise GptError(f"'{self._taken[target]}' of this stream already has the name '{target}'{hint}", str(path))
        self._taken[target] = str(path)
        return target

    def close(self) -> None:
        """Remove temporary files."""
        for places in self.all:
            if places.wheels:
                places.wheels.close()

    def _destination(self, path: Path, is_wheel: bool = False) -> Path:
        if self.output is None:
            return follow_links(path)
        folder = self.output / os.path.dirname(os.path.abspath(path)).lstrip("/") if self._parents else self.output
        return folder / (self.renaming.file(path.name) if is_wheel else path.name)
