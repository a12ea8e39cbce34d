"""Files that appear under their name whole, or not at all.

What is written goes into a new file in the folder of its name. Where the file system can (O_TMPFILE) that file has no
name until it is complete, so not even SIGKILL leaves anything; elsewhere, and for the moment between the two steps of
replacing a file, it has one that nobody can foresee, is created exclusively, and follows no link. From then on the
open descriptor is the file: what is written and checked goes through it, and the name is compared with it before and
after the renaming. So a file that somebody left or put there is never taken for ours, nor written to.

This holds in folders that others may write to, as /tmp. Against the owner of the folder nothing helps: a user who may
rename our files may do so a moment later too.
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


def _new_name() -> str:
    return f".gpt-{os.urandom(16).hex()}.part"


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file, open for reading and writing, that takes the name `path` if the block ends without an exception.

    A link at `path` is replaced, not followed; one to anything but a regular file, such as /dev/stdout, is refused.
    `mode` is that of open(2). Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
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
                    file.close()  # which tries to write what is left, and says no name
                raise
            with _named(path):
                if nameless is not None:
                    # Relative to a descriptor, so that Python has the kernel follow the link in /proc.
                    os.link(f"/proc/self/fd/{nameless}", part, dst_dir_fd=folder)
                _check_name(folder, part, file.fileno())
                os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                taken = True
                _check_name(folder, path.name, file.fileno())
    finally:
        if not taken:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
        os.close(folder)


def create(path: Path, mode: int = 0o666) -> IO[bytes]:
    """Make a new, empty file that takes the name `path` at once, for a live stream that others read while it grows.

    It replaces what `replacing` does. Raises OSError, whose `filename` is `path`.
    """
    with replacing(path, mode) as file:
        return open(os.dup(file.fileno()), "wb")


def open_stream(path: Path) -> IO[bytes] | None:
    """Open an output that isn't a file: one of our descriptors, such as /dev/stdout, a named pipe, or a device.

    Returns None for anything else, which `replacing` or `create` makes. A link is followed only from /dev/stdout and
    /dev/stderr. Opening a pipe waits for its reader. Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        if found := re.fullmatch(r"/dev/std(out|err)|(?:/dev|/proc/self)/fd/(\d{1,9})", os.path.abspath(path)):
            return open(os.dup(int(found[2]) if found[2] else 1 + (found[1] == "err")), "wb")
        with suppress(FileNotFoundError):
            if _is_stream(os.lstat(path)):
                file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
                status, folder = os.fstat(file), os.stat(path.parent)
                planted = folder.st_mode & 0o022 and status.st_uid not in (os.geteuid(), folder.st_uid)
                if planted or not _is_stream(status):
                    os.close(file)
                    raise OSError(0, "is another user's, in a folder that others may write to")
                return open(file, "wb")
    return None


def _is_stream(found: os.stat_result) -> bool:
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)


def check_folder(path: Path) -> None:
    """Whether a file can be made at `path`, asked before the work whose result it gets.

    Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        os.close(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder to write into, with its parents, if it isn't there.

    A link in its place is followed if it's this user's or root's: in a folder that others may write to, any other one
    leads where somebody else likes. Raises OSError, whose `filename` is `path`.
    """
    with _named(path):
        path.mkdir(mode, parents=True, exist_ok=True)
        found = os.lstat(path)  # now, as a link may have come before the folder could be made
        if stat.S_ISLNK(found.st_mode) and not is_user(found.st_uid, 0, os.geteuid()):
            raise OSError(0, "is a symbolic link that another user may have made")


@contextmanager
def made_beside(path: Path, folder: bool = False) -> Iterator[Path]:
    """A folder of its own beside `path`, for what others make by name and `take_name` moves; what is left in it goes.

    `folder` is whether that is one. Raises OSError, whose `filename` is `path`, if nothing could take that name.
    """
    with _named(path):
        _check_free(path, folder)
    made = path.parent / _new_name()
    try:
        with _named(path):
            made.mkdir(0o700)
        yield made
    finally:
        import shutil

        shutil.rmtree(made, ignore_errors=True)


def _check_free(path: Path, folder: bool) -> None:
    if not folder:
        _check_replaceable(path)
    elif os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        raise OSError(errno.EEXIST, "exists, and a folder is not replaced")


def take_name(made: Path, path: Path) -> None:
    """Moves what was made beside `path` there, whole. Raises OSError, whose `filename` is `path`."""
    with _named(path):
        _check_free(path, made.is_dir())
        os.rename(made, path)


def _check_replaceable(name: str | Path, folder: int | None = None) -> None:
    """Raises OSError unless what has the name may lose it to a file: a file, or a link to one or to nothing.

    A device, a pipe or a folder stays, and so does a link to one, or to a file that is open, as /dev/stdout: root would
    replace it for the whole machine.
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
    """Whether both are of one file."""
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def is_user(user: int, *meant: int) -> bool:
    """Whether a user id from the kernel is one of those that are meant; gpt_is_user() of the runtime is the same.

    In a user namespace all users without a mapping share one id, which is therefore nobody's.
    """
    if user not in meant:
        return False
    with suppress(OSError):
        if Path("/proc/self/uid_map").read_text().split()[2:3] == [str((1 << 32) - 1)]:
            return True  # in the first user namespace every user has a number of their own
    overflow = 65534
    with suppress(OSError, ValueError):
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    return user != overflow


def _open_nameless(folder: int, mode: int) -> int | None:
    """None if that cannot be, for whatever reason; /proc is needed to give it a name."""
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
        raise OSError(0, "somebody else renames files in its folder")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Faults name the output, not the name that it has meanwhile."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, error.strerror or str(error), str(path)) from None
