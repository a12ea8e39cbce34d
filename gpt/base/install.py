"""Tell the user how to install a missing Python package for the interpreter that's running.

GPT may be in an environment of its own (`make install`, pipx, uv), in the user's site-packages, or in a folder that's
only on PYTHONPATH (`pip install --target` and `--prefix`). A bare `pip` often belongs to another interpreter, so
messages show the whole command.
"""

from __future__ import annotations

import os
import shlex
import shutil
import site
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from gpt.base.errors import MissingError


def missing_package(name: str) -> MissingError:
    """Return an error that says which package from PyPI is missing, and how to install it."""
    return MissingError(f"{name}: not installed; to install it: {install_command(name)}")


def install_command(*names: str) -> str:
    """Return the shell command that installs packages from PyPI where GPT finds them."""
    python = sys.executable or "python3"
    folder = Path(__file__).absolute().parents[2]  # where GPT is installed
    if find_spec("pip") or not shutil.which("uv"):
        command, can_bootstrap = [python, "-m", "pip", "install"], sys.prefix != sys.base_prefix
    else:
        command, can_bootstrap = ["uv", "pip", "install", "--python", python], False
    line = shlex.join([*command, *_place(folder), *names])
    if can_bootstrap and not find_spec("pip") and find_spec("ensurepip"):
        line = f"{shlex.join([python, '-m', 'ensurepip'])} && {line}"
    if not os.access(_site(folder), os.W_OK):
        line += f" # as the owner of {shlex.quote(str(_site(folder)))}"
    return line


def _site(folder: Path) -> Path:
    """Return the folder where packages are installed."""
    return folder if list(folder.glob("gpu_probe-*.dist-info")) else Path(sysconfig.get_path("purelib"))


def _place(folder: Path) -> list[str]:
    """Return pip's options for installing next to GPT."""
    in_environment = sys.prefix != sys.base_prefix
    is_user = bool(site.ENABLE_USER_SITE) and folder == Path(site.getusersitepackages())
    ours = {Path(path) for path in (*site.getsitepackages(), *map(sysconfig.get_path, ("purelib", "platlib")))}
    if _site(folder) == folder and not is_user and folder not in ours:
        return ["--target", str(folder)]
    options = ["--user"] if is_user else []
    if not in_environment and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        options.append("--break-system-packages")  # GPT was installed with it too (PEP 668)
    return options
