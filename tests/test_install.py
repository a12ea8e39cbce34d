"""The message about a missing package has the right install command for the running Python and for GPT's location."""

import os
import re
import shlex
import site
import sys
import sysconfig
from pathlib import Path

import pytest

from gpt.base import install

ROOT = Path(__file__).parents[1]


@pytest.fixture
def placed(tmp_path, monkeypatch):
    """Return GPT in a folder `it`, and a Python outside any environment, in its own folder."""
    (tmp_path / "it" / "gpu_probe-1.dist-info").mkdir(parents=True)
    (tmp_path / "purelib").mkdir()
    monkeypatch.setattr(install, "__file__", str(tmp_path / "it" / "gpt" / "base" / "install.py"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "python"))
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "purelib")])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setattr(install, "find_spec", lambda name: name)
    return tmp_path


def words(folder, *more):
    return shlex.join([f"{folder}/a b/python", "-m", "pip", "install", *more, "x"])


def test_a_folder(placed):
    assert install.install_command("x") == words(placed, "--target", f"{placed}/it")
    assert install.missing_package("x").fact == f"x: not installed; to install it: {install.install_command('x')}"


def test_the_folder_of_python(placed, monkeypatch):
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(placed / "it")])
    assert install.install_command("x") == words(placed)
    (placed / "stdlib").mkdir()
    (placed / "stdlib" / "EXTERNALLY-MANAGED").touch()
    assert install.install_command("x") == words(placed, "--break-system-packages")
    monkeypatch.setattr(sys, "prefix", "/venv")  # a Python that a distribution manages isn't in an environment
    assert install.install_command("x") == words(placed)


def test_the_users_folder(placed, monkeypatch):
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(placed / "it"))
    assert install.install_command("x") == words(placed, "--user")


def test_a_checkout(placed):
    (placed / "it" / "gpu_probe-1.dist-info").rmdir()
    assert install.install_command("x") == words(placed)


def test_without_pip(placed, monkeypatch):
    (placed / "it" / "gpu_probe-1.dist-info").rmdir()
    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "pip" else name)
    monkeypatch.setattr(install.shutil, "which", lambda name: "/bin/uv")
    python = shlex.quote(f"{placed}/a b/python")
    assert install.install_command("x") == f"uv pip install --python {python} x"
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "prefix", "/venv")
    assert install.install_command("x") == f"{python} -m ensurepip && {words(placed)}"


def test_folder_of_another_user(placed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert install.install_command("x").endswith(f" x # as the owner of {placed}/it")


def test_only_one_place_describes_installation():
    """A bare `pip` may belong to another Python."""
    told = {
        ROOT / "gpt" / "base" / "install.py",
        *(ROOT / "gpt" / "packaging").iterdir(),
    }  # the latter is not installed
    for path in (ROOT / "gpt").rglob("*.py"):
        assert path in told or not re.search(r"pip3? install", path.read_text()), path
    assert not re.search(r"pip3? install", "".join(path.read_text() for path in (ROOT / "bin").iterdir()))
