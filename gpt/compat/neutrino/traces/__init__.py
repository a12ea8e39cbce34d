"""Read Neutrino's trace folders, results and `.dmat` files, of both generations, as records of a trace.

Nothing in a folder is executed, neither the generated reader nor a pickle, and no link in it is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpt.base.errors import GptError
from gpt.formats.paths import is_regular, open_regular
from gpt.trace.inputs import Format, Record, StoredBuffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PICKLE = "a pickle can run code, so it is not read: use the .bin that it was made from"
PICKLED = b"\x80\x04", b"\x80\x05"  # first bytes of pickles
MARKS = "event.log", "result", "probe.toml"  # a trace folder has at least one of these


def find_trace(path: Path) -> Iterator[Record] | None:
    """Return the records of a trace folder, a result or a .dmat, or None for anything else.

    Raises GptError for a pickle.
    """
    if path.is_dir():
        return _read_folder(path) if any((path / name).exists() for name in MARKS) else None
    if path.suffix == ".pkl" or _is_pickle(path):
        raise GptError(PICKLE, str(path))
    if path.suffix == ".bin" and is_regular(path):
        return _read_folder(path.parent.parent if path.parent.name == "result" else path.parent, path.name)
    if path.suffix == ".dmat" and is_regular(path):
        return _read_dmat(path)
    return None


def _is_pickle(path: Path) -> bool:
    if not is_regular(path):
        return False
    with open_regular(path) as file:
        return file.read(2) in PICKLED


def _read_folder(folder: Path, only: str | None = None) -> Iterator[Record]:
    from gpt.compat.neutrino.traces.folder import read_folder

    yield from read_folder(folder, only)


def _read_dmat(path: Path) -> Iterator[Record]:
    from gpt.compat.neutrino.traces.dmat import read_dmat

    yield from read_dmat(path)


def side_folder(path: Path) -> Path | None:
    """Return the folder with the results of a trace folder, or None for a file."""
    if not path.is_dir():
        return None
    return path / "result" if (path / "result").exists() else path


def unpack(file: IO[bytes], stored: StoredBuffer) -> npt.NDArray[np.uint8]:
    """Make a buffer from a section of a result. Raises MalformedError, TruncatedError, MissingError."""
    from gpt.compat.neutrino.traces.results import unpack_buffer

    return unpack_buffer(file, stored)


FORMAT = Format("neutrino", find_trace=find_trace, side_folder=side_folder, unpack=unpack)
