"""The built files run with glibc 2.28 or later and nothing else, as the wheel's tag says."""

import re
import subprocess

import pytest

from tests.runtime import hooked

FILES = (
    "gpt-hook", "libgpthook.so", "libgptreplace.so", "libgptcache.so", "sim/libcuda.so.1", "sim/libcudart.so.13",
)  # fmt: skip
GLIBC = {"libc.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2"}


@pytest.mark.parametrize("name", FILES)
def test_no_younger_symbol_and_no_other_library(name):
    path = hooked.runtime() / name
    shown = subprocess.run(["readelf", "-dVW", path], capture_output=True, text=True, check=True).stdout
    needs = shown.partition("Version needs section")[2]
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", needs)}
    assert versions and max(versions) <= (2, 28)
    assert set(re.findall(r"NEEDED.*\[(.*)\]", shown)) <= GLIBC
