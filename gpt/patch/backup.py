"""Keep the originals of libraries that are patched in place, and restore them. The backup `NAME.gpt-orig` is a hard
link until the library is replaced.

Another user who may write to the folder could put a file there first. In a normal folder, such users are trusted. In a
folder such as /tmp, where everybody can create files but not remove others' files, a backup must belong to the owner
of the library, to root, or to the caller.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.outputs import is_same, is_user, open_real_folder
from gpt.extract.files import BACKUP
from gpt.formats.image import Image, parse_image
from gpt.formats.paths import iter_links, open_regular, real_path
from gpt.formats.source import Source

REPLACED = "another process replaced it meanwhile: extract it again"


def backup_of(path: Path) -> Path:
    """Return the path at which the original of a library is kept."""
    return path.with_name(path.name + BACKUP)


def follow_links(path: Path) -> Path:
    """Follow all links at `path`, and return the file to which they lead. This file is replaced, and not a link.

    A link is only followed if it belongs to the owner of that file, to root, or to the caller. With a link, anybody
    else could lead root from an environment to the system's own libraries. Raises GptError.
    """
    real = Path(real_path(path))
    with suppress(FileNotFoundError):
        owner = os.lstat(real).st_uid
        for link in iter_links(path):
            user = os.lstat(link).st_uid
            if not is_user(user, 0, os.geteuid(), owner):
                raise GptError(f"'{link}' is a link of user {user}, who doesn't own '{real}'", str(path))
    return real


def check_unreplaced(path: Path, fd: int) -> None:
    """Raise GptError unless `path` is still the file that's open."""
    if not is_same(os.lstat(path), os.fstat(fd)):
        raise GptError(REPLACED, str(path))


def keep_backup(path: Path, fd: int, image: Image) -> None:
    """Give the original, which is open as `fd`, its backup's name as well. If there's already a backup, it's
    kept, because it's the first original.

    Raises GptError if the backup belongs to another version of the library, perhaps from before an upgrade.
    """
    backup = backup_of(path)
    try:
        with _folder_of(path, fd) as folder:
            os.link(path.name, backup.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            if not is_same(os.stat(backup.name, dir_fd=folder, follow_symlinks=False), os.fstat(fd)):
                os.unlink(backup.name, dir_fd=folder)
                raise GptError(REPLACED, str(path))
    except FileExistsError:
        with _opened(backup, os.fstat(fd).st_uid) as original:
            if not is_same(os.fstat(original), os.fstat(fd)) and _version_of(backup, original) != _version(image):
                fact = f"'{backup}' is the original of another version: remove or restore it first"
                raise GptError(fact, str(path)) from None


def restore(path: Path) -> None:
    """Move the original back to `path`, or if that's a symbolic link, to the file to which it leads.

    Raises MissingError if there's no backup, and GptError if the library is a different version now, after an upgrade.
    """
    path = follow_links(path)
    backup = backup_of(path)
    if not os.path.lexists(backup):
        raise MissingError(f"no backup: {backup} is absent", str(path))
    with _opened(backup, path.stat().st_uid if path.exists() else os.geteuid()) as original:
        with suppress(MissingError, MalformedError, FileNotFoundError), open_regular(path) as file:
            if _version_of(path, file.fileno()) != _version_of(backup, original):  # anything but a library may go
                raise GptError(
                    f"is another version than its backup: remove '{backup}', or '{path.name}' first", str(path)
                )
        with _folder_of(backup, original) as folder:
            os.rename(backup.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            # If patching was interrupted before the library was replaced, both names refer to the same file, and both
            # are kept.
            with suppress(FileNotFoundError):
                os.unlink(backup.name, dir_fd=folder)
        check_unreplaced(path, original)


@contextmanager
def _folder_of(path: Path, fd: int) -> Iterator[int]:
    """Open the folder of an open file, whose path is canonical.

    The owner of any folder in the path could replace it by a link at any time. Raises GptError if the file isn't there.
    """
    folder = open_real_folder(path.parent)
    try:
        if not is_same(os.stat(path.name, dir_fd=folder, follow_symlinks=False), os.fstat(fd)):
            raise GptError(REPLACED, str(path))
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened(backup: Path, owner: int) -> Iterator[int]:
    """Open the backup of a library that belongs to `owner`. Raises GptError if it can't be trusted."""
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
    """Return facts about a library that don't change when it's slimmed, but do change in another version."""
    first: dict[str, tuple[int, int]] = {}  # later sections of the same name may be parts of the first
    for section in image.elf.sections if image.elf else []:
        first.setdefault(section.name, (section.type, section.addr))
    return image.type, image.build_id, first


def _version_of(path: Path, fd: int) -> tuple[object, ...]:
    return _version(parse_image(Source(str(path), fd)))
