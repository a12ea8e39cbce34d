"""Originals of libraries that were patched in place: `NAME.gpt-orig`, a second name of the file until it is replaced.

Whoever may write to the folder can put something there first. In a folder of one's own that is somebody trusted; in
one such as /tmp, where all may create files and none may remove those of others, a backup has to be of the library's
owner, of root, or of the caller.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.outputs import is_same, is_user
from gpt.extract.files import BACKUP
from gpt.formats.image import Image, parse_image
from gpt.formats.paths import open_regular, real_path
from gpt.formats.source import Source


def backup_of(path: Path) -> Path:
    """Where the original of a library patched in place is kept."""
    return path.with_name(path.name + BACKUP)


def check_unreplaced(path: Path, fd: int) -> None:
    """Raises GptError unless an open file still has the name `path`."""
    if not is_same(os.lstat(path), os.fstat(fd)):
        raise GptError("somebody else replaced it meanwhile: extract it again", str(path))


def keep_backup(path: Path, fd: int, image: Image) -> None:
    """Gives the original, open as `fd`, a second name, once: one that is patched again keeps its first original.

    Raises GptError if the name is taken by another version of the library, of before an upgrade perhaps.
    """
    backup = backup_of(path)
    try:
        os.link(path, backup, follow_symlinks=False)
    except FileExistsError:
        with _opened(backup, os.fstat(fd).st_uid) as original:
            if not is_same(os.fstat(original), os.fstat(fd)) and _version_of(backup, original) != _version(image):
                fact = f"'{backup}' is the original of another version: remove or restore it first"
                raise GptError(fact, str(path)) from None
        return
    try:
        check_unreplaced(backup, fd)
    except GptError as error:
        backup.unlink(missing_ok=True)
        raise GptError(error.fact, str(path)) from None


def restore(path: Path) -> None:
    """Brings the original back, in place of the file that links lead to.

    Raises MissingError if there is none, GptError if the library is another one by now, after an upgrade.
    """
    path = Path(real_path(path))
    backup = backup_of(path)
    if not os.path.lexists(backup):
        raise MissingError(f"no backup: {backup} is absent", str(path))
    with _opened(backup, path.stat().st_uid if path.exists() else os.geteuid()) as original:
        with suppress(MissingError, MalformedError, FileNotFoundError), open_regular(path) as file:
            if _version_of(path, file.fileno()) != _version_of(backup, original):  # whatever is not a library may go
                raise GptError(
                    f"is another version than its backup: remove '{backup}', or '{path.name}' first", str(path)
                )
        check_unreplaced(backup, original)
        backup.replace(path)
        check_unreplaced(path, original)
    # Two names of one file stay, as when patching ended before the new one took its name.
    backup.unlink(missing_ok=True)


@contextmanager
def _opened(backup: Path, owner: int) -> Iterator[int]:
    """A backup that may be trusted to be the one of a library of `owner`. Raises GptError."""
    try:
        with open_regular(backup, follow=False) as file:
            folder = os.stat(backup.parent)
            trusted = is_user(os.fstat(file.fileno()).st_uid, 0, os.geteuid(), owner)
            if folder.st_mode & stat.S_ISVTX and not trusted:
                raise GptError("has another owner, in a folder where everybody may write: remove it first", str(backup))
            yield file.fileno()
    except MissingError as error:
        raise GptError(f"is not a backup ({error.fact}): remove it first", str(backup)) from None


def _version(image: Image) -> tuple[object, ...]:
    """What stays when a library is slimmed, and changes when it is built anew."""
    first: dict[str, tuple[int, int]] = {}  # further sections of a name may be parts of the first
    for section in image.elf.sections if image.elf else []:
        first.setdefault(section.name, (section.type, section.addr))
    return image.type, image.build_id, first


def _version_of(path: Path, fd: int) -> tuple[object, ...]:
    return _version(parse_image(Source(str(path), fd)))
