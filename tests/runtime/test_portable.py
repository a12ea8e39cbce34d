"""The built files run where glibc is 2.34 or later, and nothing but libc has to be there."""

import re
import subprocess

import pytest

from tests.runtime import hooked

FILES = ("gpt-hook", "libgpthook.so", "libgptreplace.so", "libgptcache.so", "sim/libcuda.so.1")


@pytest.mark.parametrize("name", FILES)
def test_no_younger_symbol_and_no_other_library(name):
    path = hooked.runtime() / name
    shown = subprocess.run(["readelf", "-dVW", path], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", shown)}
    assert versions and max(versions) <= (2, 34)
    assert set(re.findall(r"NEEDED.*\[(.*)\]", shown)) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
