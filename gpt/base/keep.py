"""GPT_KEEP: a folder where stages keep what they made of each kernel, for people to look into.

A kernel with its probes has a folder in it, `NAME.DIGEST`: its mangled name, as far as that is harmless and not too
long, and the beginning of the digest of name and probed text. So the stage that weaves and the one that assembles find
the same one without knowing of each other. Only the user can read it; a file in it is whole or not there. A folder that
another user could have put in its place isn't used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpt.base.cache import make_private
from gpt.base.outputs import replacing

MAX_NAME = 100  # characters of a kernel's name in that of its folder


def keeping() -> bool:
    """Whether anything is to be kept."""
    return bool(os.environ.get("GPT_KEEP"))


def kept_in(top: Path, kernel: str, text: bytes) -> Path:
    """The folder of a kernel with this text."""
    digest = hashlib.sha256(kernel.encode(errors="surrogateescape") + b"\0" + text).hexdigest()[:16]
    name = re.sub(r"[^\w$]", "_", kernel, flags=re.ASCII)[:MAX_NAME] or "kernel"
    return top / f"{name}.{digest}"


def keep(kernel: str, text: bytes, files: Mapping[str, bytes]) -> None:
    """Keeps files of a kernel with this text, if that is asked for. Raises OSError, whose `filename` says where."""
    if not keeping():
        return
    folder = kept_in(Path(os.environ["GPT_KEEP"]), kernel, text)
    make_private(folder)
    for file, data in files.items():
        with replacing(folder / file, 0o600) as out:
            out.write(data)
