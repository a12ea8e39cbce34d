"""Which file is read for a library of the stream, and where the patched one goes: a folder, its own place, a wheel."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import GptError, MissingError
from gpt.formats.paths import real_path
from gpt.patch.versions import Renaming, label_of
from gpt.patch.wheel import Wheels, split


class PatchPaths(NamedTuple):
    """The path of a library in the stream, the file to read, the file to write, how that is called in the end."""

    path: Path
    source: Path
    target: Path
    name: str

    @property
    def is_member(self) -> bool:
        """Whether it was unpacked for this, out of a wheel."""
        return self.source != self.path


class Places:
    """The outputs of one run. `output` is the folder for them, None to replace each library in its place."""

    def __init__(self, output: Path | None, parents: bool = False, dry_run: bool = False, label: str = "") -> None:
        self.output = output
        self.renaming = Renaming(label)  # of wheels
        self.wheels: Wheels | None = None  # those that libraries of the stream lie in
        self._parents = parents
        self._dry_run = dry_run
        self._taken: dict[Path, str] = {}  # output -> library
        self._by_arch: dict[str, Places] = {}

    @property
    def all(self) -> list[Places]:
        """These, and those of each --arch."""
        return [self, *self._by_arch.values()]

    def for_arch(self, arch: str) -> Places:
        """The places of what is cut for the devices of one --arch: wheels are named after it, unless they have a label.

        Raises MalformedError.
        """
        if arch not in self._by_arch:
            label = self.renaming.label or label_of(arch)
            self._by_arch[arch] = made = Places(self.output, self._parents, self._dry_run, label)
            made._taken = self._taken
        return self._by_arch[arch]

    def find(self, library: str) -> PatchPaths:
        """The place of a library. Raises MissingError if it is absent, GptError if its output is impossible."""
        path = Path(library)
        if path.exists():
            target = self.take(path)
            return PatchPaths(path, path, target, str(target))
        if not (found := split(library)):
            raise MissingError(os.strerror(errno.ENOENT), library)
        # A member of a wheel: it is patched outside, and put into a new wheel when all of its libraries are.
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
        """Where the output for a file goes: a name in the folder, or the file itself, through all links.

        Raises GptError if it has that name already, or another file of this run has.
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
        """Removes what is temporary."""
        for places in self.all:
            if places.wheels:
                places.wheels.close()

    def _destination(self, path: Path, is_wheel: bool = False) -> Path:
        if self.output is None:
            return Path(real_path(path))
        folder = self.output / os.path.dirname(os.path.abspath(path)).lstrip("/") if self._parents else self.output
        return folder / (self.renaming.file(path.name) if is_wheel else path.name)
