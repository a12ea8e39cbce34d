"""Temporary folders belong to this user, even if others rename things in TMPDIR."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpt.asm import find
from gpt.asm.backend import Options
from gpt.asm.find import Tools
from gpt.asm.host import backend
from gpt.asm.host.backend import Host, HostTarget
from gpt.asm.ptxas import Runner
from gpt.asm.targets import GpuTarget
from gpt.base.cache import Cache
from gpt.base.errors import OutputError
from gpt.base.scratch import scratch_folder
from gpt.probe.sass import snippets
from gpt.sass.tables import table_of
from tests.asm import fake

ROOT = Path(__file__).parents[1]
PLAIN = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
SWAP = """
here=$(pwd -P)
mv "$here" "$here.moved"
mkdir "$here"
printf evil > "$here/{result}"
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "temporary").mkdir(0o777)
    return tmp_path / "temporary"


def test_folder_is_private_and_removed_with_its_contents(temporary):
    with scratch_folder("gpt-x.") as made:
        assert made.path.parent == temporary and made.path.name.startswith("gpt-x.")
        assert made.path.stat().st_mode & 0o777 == 0o700
        made.write("file", b"data")
        (made.path / "below").mkdir()
        (made.path / "below" / "file").touch()
        (made.path / "link").symlink_to("below")
        assert made.read("file") == (made.path / "file").read_bytes() == b"data"
        assert made.read("missing") == made.read("link") == made.read("below") == b""
        with pytest.raises(OSError):
            made.write("link", b"")
    assert list(temporary.iterdir()) == []
    with pytest.raises(OSError):
        os.fstat(made.folder)


def test_replaced_folder_is_neither_read_nor_emptied(temporary):
    with scratch_folder("gpt-x.") as made:
        made.write("file", b"ours")
        made.path.rename(temporary / "moved")
        made.path.symlink_to(temporary / "others")
        (temporary / "others").mkdir()
        (temporary / "others" / "file").write_bytes(b"theirs")
        assert made.read("file") == b"ours"
    assert (temporary / "others" / "file").read_bytes() == b"theirs"
    assert list((temporary / "moved").iterdir()) == []


@pytest.mark.parametrize("parent", ["missing", "file", "x" * 300])
def test_uncreatable_folder_is_reported_with_its_parent(monkeypatch, temporary, parent):
    (temporary / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / parent))
    with pytest.raises(OutputError) as error, scratch_folder("gpt-x."):
        pass
    assert error.value.where == str(temporary / parent)


def test_code_comes_from_the_folder_that_the_c_compiler_ran_in(monkeypatch, tmp_path):
    """Other users may rename files in TMPDIR, so the program would run a file that somebody else put there."""
    version = 'case "$*" in *--version*) echo fake 1; exit 0;; esac\n'
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{version}{SWAP.format(result='module.so')}printf right > module.so\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    backend.find_compiler.cache_clear()
    try:
        assert Host(Options()).make(PLAIN.encode(), "m", HostTarget()).image == b"right"
    finally:
        backend.find_compiler.cache_clear()


def test_code_comes_from_the_folder_that_ptxas_ran_in(tmp_path):
    real = Tools(None).first().path
    path = fake.ptxas(tmp_path / "swapping", f'{SWAP.format(result="module.cubin")}exec {real} "$@"')
    tool = Tools(str(path)).choose((8, 0), GpuTarget(9, 0, ""))
    done = Runner(600).assemble(tool, PLAIN.encode(), "m", GpuTarget(9, 0, ""), Options())
    assert done.cubin[:4] == b"\x7fELF"


def test_probes_code_comes_from_the_folder_that_ptxas_ran_in(tmp_path, monkeypatch):
    real = Tools(None).first().path
    path = fake.ptxas(tmp_path / "swapping", f'{SWAP.format(result="bodies.cubin")}exec {real} "$@"')
    monkeypatch.setattr(find, "Tools", lambda _, **more: Tools(str(path), **more))
    body = ".func NAME() { ret; }\n"
    compiler = snippets.Compiler("sm_90", table_of("sm_90"), Cache(None))
    compiler.compile([body])
    assert compiler.find(body).snippet.words == ()


def test_shell_scripts_judge_the_folder_alike():
    """Each script is installed as a single file, so all three contain the same function."""
    scripts = [(ROOT / "bin" / name).read_text() for name in ("gpt-debloat", "gpt-negativa", "gpt-trace")]
    assert len({re.findall(r"^place\(\) \{.*?^\}", text, re.M | re.S)[0] for text in scripts}) == 1


INTERRUPTED = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from gpt.base import scratch, signals

class Stack(ExitStack):
    def _push_cm_exit(self, *given):  # where the stack gets to know of the folder
        os.kill(os.getpid(), signal.SIGINT)
        super()._push_cm_exit(*given)

signals.catch()
try:
    with Stack() as stack:
        scratch.enter_scratch(stack, "made.", Path(sys.argv[1]))
except signals.Terminated as ended:
    signals.die(ended.number)  # as a stage does
"""


def test_a_signal_before_a_stack_knows_of_a_folder_does_not_leave_it(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, place], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    assert os.listdir(place) == []
