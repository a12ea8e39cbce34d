"""GPT_KEEP: a folder in which stages keep their intermediate files of each kernel, for people to look at.

A kernel with probes gets a folder NAME.DIGEST: its mangled name, sanitized and shortened, and the beginning of a digest
of its name and the text with probes. So the stage that weaves and the stage that assembles choose the same folder
without knowing about each other. Only the user can read it, files appear in it when they're complete, and if another
user could have replaced the folder, it isn't used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpt.base.cache import make_private
from gpt.base.outputs import replacing

MAX_NAME = 100  # characters of a kernel's name in the name of its folder


def keeping() -> bool:
    """Return whether stages should keep files."""
    return bool(os.environ.get("GPT_KEEP"))


def kept_in(top: Path, kernel: str, text: bytes) -> Path:
    """Return the folder for a kernel with this text."""
    digest = hashlib.sha256(kernel.encode(errors="surrogateescape") + b"\0" + text).hexdigest()[:16]
    name = re.sub(r"[^\w$]", "_", kernel, flags=re.ASCII)[:MAX_NAME] or "kernel"
    return top / f"{name}.{digest}"


def keep(kernel: str, text: bytes, files: Mapping[str, bytes]) -> None:
    """Keep files of a kernel with this text, if GPT_KEEP is set. Raises OSError, whose `filename` says where."""
    if not keeping():
        return
    folder = kept_in(Path(os.environ["GPT_KEEP"]), kernel, text)
    make_private(folder)
    for file, data in files.items():
        with replacing(folder / file, 0o600) as out:
            out.write(data)
