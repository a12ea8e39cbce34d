"""Set up clients of the simulated device."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from tests.runtime import hooked, simulated, twins
from tests.tiers import full


@pytest.fixture(scope="session")
def twin_folder(tmp_path_factory) -> twins.Folder:
    return twins.Folder(tmp_path_factory.mktemp("twins"))


@pytest.fixture(autouse=True)
def code(request, monkeypatch):
    """Return the form of a test's kernels: PTX or, for `in_both_forms` in a second run, machine code."""
    form = getattr(request, "param", "ptx")
    if form == "sass":
        folder = request.getfixturevalue("twin_folder")
        monkeypatch.setattr(hooked, "machine_code", folder)
        monkeypatch.setenv("GPT_RUNTIME", str(hooked.runtime()))
        monkeypatch.setenv("GPT_SIM_TWINS", str(folder.path))
    return form


@pytest.fixture(params=[None, full("thread"), full("address,undefined")])
def play(request, tmp_path, shared):
    """Build a C client and run it on the simulated device, both with or both without sanitizers; return its output. It
    must exit with 0 and print no errors.
    """
    folder = simulated.sanitized(request.param, shared) if request.param else None

    def build_and_run(source, *args, **env):
        program = simulated.build(tmp_path / "client", source, *([f"-fsanitize={request.param}"] if folder else []))
        done = simulated.run(program, *args, folder=folder, **env)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return build_and_run


@pytest.fixture
def play_kernels(tmp_path):
    """Build kernels in C, run a script on the simulated device, and return the script's output. It must exit with 0.
    Unless `begin` is set, the script initializes the driver itself.
    """

    def build_and_run(kernels, script, begin=True, **env):
        made = simulated.compile_kernels(tmp_path / "kernels.so", kernels)
        text = f"from ctypes import *\nfrom tests.runtime.driving import *\nPATH = {str(made)!r}\n"
        text += ("begin()\nmodule = load(PATH)\n" if begin else "") + dedent(script)
        env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"} | env
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, cwd=hooked.ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done

    return build_and_run


@pytest.fixture
def sim_play(tmp_path):
    """Run a script with driving.py on the simulated device, with its own cache; `command` is prepended."""

    def run(script, *args, command=(), **env):
        text = f"from ctypes import *\nimport sys\nfrom tests.runtime.driving import *\nbegin()\n{dedent(script)}"
        env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"} | env
        env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        line = [*command, sys.executable, "-c", text, *map(str, args)]
        return subprocess.run(line, env=env, cwd=hooked.ROOT, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="session")
def nvtx_wheels(tmp_path_factory) -> Path:
    """Return a folder with NVIDIA's NVTX headers (include/nvtx3) and the Python package nvtx."""
    folder = tmp_path_factory.mktemp("wheels")
    line = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
    names = ["nvidia-nvtx==13.5.25", "nvtx==0.2.17"]
    if subprocess.run([*line, *names], capture_output=True, check=False, timeout=100).returncode:
        pytest.skip("the wheels cannot be had")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    next(folder.rglob("nvtx3")).parent.rename(folder / "include")
    return folder
