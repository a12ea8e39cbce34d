"""Other versions of glibc, from Debian's packages: the hook loads and records the same."""

import os
import subprocess
import urllib.error
import urllib.request

import pytest
from elftools.elf.elffile import ELFFile

from tests.runtime import hooked
from tests.runtime.clients import LOOP
from tests.runtime.hooked import Trace

POOL = "http://deb.debian.org/debian/pool/main/g/glibc"


def fetch(folder, version):
    """Return the unpacked package, its dynamic linker, and the folder of its libraries."""
    try:
        with urllib.request.urlopen(f"{POOL}/libc6_{version}_amd64.deb", timeout=30) as answer:
            (folder / "libc6.deb").write_bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"libc6 {version} cannot be fetched: {error}")
    subprocess.run(["dpkg", "-x", "libc6.deb", "."], cwd=folder, check=True)
    linker = next(path for path in folder.rglob("ld-*.so*") if path.is_file() and path.stat().st_size)
    return linker, next(folder.rglob("libc.so.6")).parent


def start(linker, libraries, trace, *args):
    """Run a program with another dynamic linker, because gpt-hook would use this machine's."""
    line = [linker, "--preload", hooked.runtime() / "libgpthook.so"]
    line += ["--library-path", f"{hooked.runtime() / 'sim'}:{libraries}", *args]
    env = os.environ | {"GPT_HOOK_OUTPUT": str(trace), "GPT_HOOK_CALLS": "all"}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.full
def test_a_newer_one(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    linker, libraries = fetch(tmp_path, "2.41-12")
    done = start(linker, libraries, tmp_path / "other.mp", program, "100")
    assert (done.returncode, done.stderr) == (0, "")
    assert hooked.run(tmp_path / "t.mp", program, "100").returncode == 0
    here, there = Trace(tmp_path / "t.mp"), Trace(tmp_path / "other.mp")
    assert there.names == here.names and there.launches == here.launches == {"foo": 100}
    assert any(library["path"] == str(libraries / "libc.so.6") for library in there.of("library"))
    assert there.records[-1]["kind"] == "end"


@pytest.mark.full
def test_an_older_one(tmp_path):
    """Debian 11 and Ubuntu 20.04 have this version; its threads and dlopen are separate libraries."""
    runtime = hooked.ROOT / "runtime"
    flags = [
        "-include",
        runtime / "portable.h",
        hooked.ARCH / "launcher" / "start.c",
        *hooked.INCLUDE,
        "-Wl,--wrap=__libc_start_main",
    ]
    program = hooked.compile_c(tmp_path / "client", LOOP, *flags)
    linker, libraries = fetch(tmp_path, "2.31-13+deb11u11")
    done = start(linker, libraries, tmp_path / "t.mp", program, "100")
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.launches == {"foo": 100} and trace.records[-1]["kind"] == "end"
    line = [linker, "--library-path", libraries, hooked.runtime() / "gpt-hook", "--version"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.startswith("gpt-hook ")


def test_thread_local_variables_fit_with_an_audit_library():
    """With --replace, glibc 2.36 couldn't load the hook when it had 1,744 bytes of thread-local variables."""
    with (hooked.ROOT / "gpt/_runtime/libgpthook.so").open("rb") as file:
        sizes = [s["p_memsz"] for s in ELFFile(file).iter_segments("PT_TLS")]
    assert sum(sizes) <= 1440, "make thread-local arrays of the hook smaller"
