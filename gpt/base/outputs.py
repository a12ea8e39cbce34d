"""Output files that appear under their name when they're complete, or not at all.

Each output is written to a new file in the same folder. If the file system supports it (O_TMPFILE), the file has no
name until it's complete, so not even SIGKILL leaves anything behind. Otherwise, and for a moment while it replaces a
file, it has a random name; it's created exclusively, and links aren't followed. From then on, we use the open
descriptor and never the name: writing and checking go through it, and we compare it with the name before and after
renaming. So if somebody else puts a file there, we never mistake it for ours, or write to it.

This is safe in folders to which others may write, such as /tmp. It doesn't protect against the owner of the folder, who
could rename our files a moment later anyway.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def _new_name() -> str:
    return f".gpt-{os.urandom(16).hex()}.part"


@contextmanager
def replacing(path: Path, mode: int = 0o666, replaced: int | None = None) -> Iterator[IO[bytes]]:
    """Open a new file for reading and writing. It takes the name `path` if the block ends without an exception.

    A link at `path` is replaced, not followed; a link to anything but a regular file, such as /dev/stdout, is refused.
    `mode` is the same as for open(2). With `replaced`, an open file, only that file is replaced, and no part of `path`
    may be a link: somebody else could put one there at any time. Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        folder = os.open(path.parent, FOLDER) if replaced is None else open_real_folder(path.parent)
    part = _new_name()
    taken = False
    try:
        with _named(path):
            _check_replaceable(path.name, folder)
            nameless = _open_nameless(folder, mode)
            file = open(_open_named(folder, part, mode) if nameless is None else nameless, "w+b")
        with file:
            try:
                yield file
                file.flush()
            except OSError as error:
                error.filename = error.filename or str(path)
                with suppress(OSError):
                    file.close()  # it tries to write its buffer, and its error has no name
                raise
            with _named(path):
                if nameless is not None:
                    # Relative to a descriptor, so that Python has the kernel follow the link in /proc.
                    os.link(f"/proc/self/fd/{nameless}", part, dst_dir_fd=folder)
                _check_name(folder, part, file.fileno())
                if replaced is not None:
                    _check_name(folder, path.name, replaced)
                os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                taken = True
                _check_name(folder, path.name, file.fileno())
    finally:
        if not taken:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
        os.close(folder)


def create(path: Path, mode: int = 0o666) -> IO[bytes]:
    """Create a new, empty file with the name `path` immediately, for a live stream that others read while it grows.

    It replaces the same files as `replacing`. Raises OSError, whose `filename` is `path`.
    """
    with replacing(path, mode) as file:
        return open(os.dup(file.fileno()), "wb")


def open_stream(path: Path) -> IO[bytes] | None:
    """Open an output that isn't a file: one of our descriptors, such as /dev/stdout, a named pipe, or a device.

    Returns None for everything else, for which there are `replacing` and `create`. Links are followed only from
    /dev/stdout and /dev/stderr. Opening a pipe waits for its reader. Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        if found := re.fullmatch(r"/dev/std(out|err)|(?:/dev|/proc/self)/fd/(\d{1,9})", os.path.abspath(path)):
            return open(os.dup(int(found[2]) if found[2] else 1 + (found[1] == "err")), "wb")
        with suppress(FileNotFoundError):
            if _is_stream(os.lstat(path)):
                place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # doesn't wait for a reader yet
                try:
                    status, folder = os.fstat(place), os.stat(path.parent)
                    planted = folder.st_mode & 0o022 and status.st_uid not in (os.geteuid(), folder.st_uid)
                    if planted or not _is_stream(status):
                        raise OSError(0, "is another user's, in a folder that others may write to")
                    return open(os.open(f"/proc/self/fd/{place}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")
                finally:
                    os.close(place)
    return None


def _is_stream(found: os.stat_result) -> bool:
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)


def open_real_folder(path: Path) -> int:
    """Open a folder by its absolute path, no part of which may be a link. Raises OSError."""
    folder = os.open("/", FOLDER)
    for name in path.parts[1:]:
        outer = folder
        try:
            folder = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    return folder


def check_folder(path: Path) -> None:
    """Check that a file can be created at `path`, before doing the work that produces it.

    Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        os.close(os.open(path.parent, FOLDER))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents, unless it exists.

    A link in its place is only followed if it belongs to this user or root; in a folder that others may write to, any
    other link could lead anywhere. Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        path.mkdir(mode, parents=True, exist_ok=True)
        found = os.lstat(path)  # after mkdir, since a link may have appeared in the meantime
        if stat.S_ISLNK(found.st_mode) and not is_user(found.st_uid, 0, os.geteuid()):
            raise OSError(0, "is a symbolic link that another user may have made")


def make_open_folder(path: Path) -> int:
    """Create a folder and open it, so that files can be created through the descriptor even if somebody else takes its
    name.

    Raises OSError, whose `filename` is `path`, for example if somebody has already replaced the folder.
    """
    with _named(path):
        path.mkdir()
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(folder).st_uid != os.geteuid() or os.listdir(folder):
            os.close(folder)
            raise OSError(0, "another process put another folder in its place")
    return folder


def check_free(path: Path, folder: bool = False) -> None:
    """Raise OSError, whose `filename` is `path`, if `take_name` couldn't give this name to a file, or with `folder`, to
    a folder.
    """
    with _named(path):
        _check_free(path, folder)


def _check_free(path: Path, folder: bool) -> None:
    if not folder:
        _check_replaceable(path)
    elif os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        raise OSError(errno.EEXIST, "exists, and a folder is not replaced")


def take_name(made: Path, path: Path) -> None:
    """Move a complete file or folder to its final name. Raises OSError, whose `filename` is `path`."""
    with _named(path):
        _check_free(path, made.is_dir())
        os.rename(made, path)


def _check_replaceable(name: str | Path, folder: int | None = None) -> None:
    """Raise OSError unless a new file can be given this name: it must be free, or a file, or a link to a file or to
    nothing.

    Devices, pipes and folders are rejected, and so are links to any of these and to open files, such as /dev/stdout.
    Otherwise, root could replace the system's own /dev/stdout.
    """
    with suppress(FileNotFoundError):
        found, is_open = os.stat(name, dir_fd=folder, follow_symlinks=False), False
        if stat.S_ISLNK(found.st_mode):
            is_open = os.readlink(name, dir_fd=folder).startswith("/proc/")
            with suppress(OSError):
                found = os.stat(name, dir_fd=folder)
        if is_open or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise OSError(0, "is not a regular file")


def is_same(a: os.stat_result, b: os.stat_result) -> bool:
    """Return whether both are the same file."""
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def is_user(user: int, *meant: int) -> bool:
    """Return whether a user id that the kernel reported is one of `meant`. gpt_is_user() in the runtime does the same.

    In a user namespace, all users without a mapping have the same id, so it doesn't identify anybody.
    """
    if user not in meant:
        return False
    with suppress(OSError):
        if Path("/proc/self/uid_map").read_text().split()[2:3] == [str((1 << 32) - 1)]:
            return True  # in the initial user namespace, every user has a distinct id
    overflow = 65534
    with suppress(OSError, ValueError):
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    return user != overflow


def _open_nameless(folder: int, mode: int) -> int | None:
    """Open a file without a name, or return None if that's not possible. It needs /proc to get a name later."""
    with suppress(OSError):
        file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, dir_fd=folder)
        if os.path.exists(f"/proc/self/fd/{file}"):
            return file
        os.close(file)
    return None


def _open_named(folder: int, name: str, mode: int) -> int:
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC, mode, dir_fd=folder)


def _check_name(folder: int, name: str, file: int) -> None:
    if not is_same(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(file)):
        raise OSError(errno.ESTALE, "another process renamed or replaced it meanwhile")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Report errors with the name of the output instead of its temporary name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, error.strerror or str(error), str(path)) from None
