"""The library built with sanitizers, and as it is under valgrind, with clients that use most of it."""

import os
import shutil
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.clients import ARGUMENTS, FORK, LOADS, PLAYED, THREADS, VFORK

MARKS = """
    for (int i = 0; i < 100; i++)
        F(core, CORE_RangePushA, int, "name");
    F(core, CORE_MarkW, void, L"\\u00e4"), F(core, CORE_RangeEnd, void, F(core, CORE_RangeStartA, uint64_t, "range"));
    for (int i = 0; i < 101; i++)
        F(core, CORE_RangePop, int);
    F(core2, CORE2_DomainRegisterStringA, void *, F(core2, CORE2_DomainCreateA, void *, "domain"), "text");
"""
TRUNCATED = """
int main(void) {
    begin();
    void *f = kernel("foo");
    launch(f);
    assert(!truncate(getenv("GPT_HOOK_OUTPUT"), 0));
    for (int i = 0; i < 100000; i++)
        launch(f);
}
"""

CLIENTS = {
    "threads": (THREADS.replace("5000", "500"), ["-DROUNDS=3", "-DAT_ONCE=6"]),
    "fork": (FORK, []),
    "vfork": (VFORK, []),
    "arguments": (ARGUMENTS, []),
    "modules": (LOADS, []),
    "nvtx": (PLAYED.replace("MORE", MARKS), [f"-I{hooked.ROOT}/runtime"]),
    "truncated": (TRUNCATED, []),
}


def build(folder, sanitizer):
    """The library built with it, and the runtime of the sanitizer."""
    name = {"address": "asan", "thread": "tsan", "undefined": "ubsan"}[sanitizer]
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=False)
    if not found.stdout.startswith("/"):
        pytest.skip(f"no lib{name}")
    flags = ("-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    hooked.build_hook(folder / "libgpthook.so", *flags, compiler="gcc")
    return f"{found.stdout.strip()} {folder}/libgpthook.so"


def memcheck(folder):
    """The library as it is, for valgrind."""
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind (Debian: apt-get install valgrind libc6-dbg)")
    return str(shutil.copy(hooked.runtime() / "libgpthook.so", folder))


@pytest.mark.full
@pytest.mark.parametrize("checker", ["address", "thread", "undefined", "memcheck"])
def test_checker_finds_nothing(tmp_path, checker):
    preload = memcheck(tmp_path) if checker == "memcheck" else build(tmp_path, checker)
    checked = ["valgrind", "-q", "--error-exitcode=9"] if checker == "memcheck" else []
    for name, (source, flags) in CLIENTS.items():
        program = hooked.compile_c(tmp_path / name, source, *flags)
        env = os.environ | {
            "ASAN_OPTIONS": "detect_leaks=0",  # what the clients do not free is not the point
            "LD_LIBRARY_PATH": str(hooked.runtime() / "sim"),
            "LD_PRELOAD": preload,
            "GPT_HOOK_OUTPUT": f"{tmp_path}/{name}.mp",
            "GPT_HOOK_MODULES": str(tmp_path),
            "GPT_HOOK_IOCTL": "1",
            "NVTX_INJECTION64_PATH": f"{tmp_path}/libgpthook.so",
        }
        done = subprocess.run(
            [*checked, program, "x"], env=env, capture_output=True, text=True, timeout=300, check=False
        )
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the kernel's address space randomization is too much for the sanitizer")
        if name == "truncated":
            assert done.returncode == 0 and done.stderr.count("\n") == 1 and "was truncated" in done.stderr
            continue
        assert (done.returncode, done.stderr) == (0, ""), name
        assert hooked.Trace(tmp_path / f"{name}.mp").records[-1]["kind"] == "end"
