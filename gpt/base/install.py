"""Say how to install a Python package that is missing, for the interpreter that is running.

GPT itself may be in an environment of its own (`make install`, pipx, uv), in the user's site-packages, or in a folder
that only PYTHONPATH names (`pip install --target` and `--prefix`). A bare `pip` is another interpreter's as often as
not, so messages name the whole command.
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
    """Return the error that says a package of PyPI is missing, and how to install it."""
    return MissingError(f"{name}: not installed; to install it: {install_command(name)}")


def install_command(*names: str) -> str:
    """Return the shell command that installs packages of PyPI where GPT finds them."""
    python = sys.executable or "python3"
    folder = Path(__file__).absolute().parents[2]  # that GPT was installed in
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
    """Return the folder that packages go to."""
    return folder if list(folder.glob("gpu_probe-*.dist-info")) else Path(sysconfig.get_path("purelib"))


def _place(folder: Path) -> list[str]:
    """Return pip's options for installing where GPT is."""
    in_environment = sys.prefix != sys.base_prefix
    is_user = bool(site.ENABLE_USER_SITE) and folder == Path(site.getusersitepackages())
    ours = {Path(path) for path in (*site.getsitepackages(), *map(sysconfig.get_path, ("purelib", "platlib")))}
    if _site(folder) == folder and not is_user and folder not in ours:
        return ["--target", str(folder)]
    options = ["--user"] if is_user else []
    if not in_environment and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        options.append("--break-system-packages")  # as GPT was installed (PEP 668)
    return options
