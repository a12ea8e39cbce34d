"""Messages from C code: untrusted names can't control a terminal."""

import os
import subprocess
import sys
import unicodedata

import pytest

from tests.runtime import hooked
from tests.runtime.slimmed import CLIENT, slim, two_kernels
from tests.tiers import full

EVIL = "e\x1b[2J\x9b31m\u202e\r\nvil"
SHOWN = r"e\x1b[2J\xc2\x9b31m\xe2\x80\xae\x0d\x0avil"
LINES = r"""
#include <string.h>
#include "say.h"
int main(void) {
    char *line = NULL;
    size_t room = 0;
    for (ssize_t size; (size = getdelim(&line, &room, 0, stdin)) > 0;)
        gpt_write_line(line);
}
"""


def say(folder, *texts):
    program = hooked.compile_c(folder / "say", LINES, f"-I{hooked.ROOT / 'runtime'}")
    done = subprocess.run([program], input=b"\0".join([*texts, b""]), stderr=subprocess.PIPE, check=True, timeout=60)
    return done.stderr.split(b"\n")[:-1]


@pytest.mark.parametrize("step", [29, full(1)])
def test_every_character(tmp_path, step):
    """The result is the same as in gpt/base/printable.py, except for characters of newer Unicode versions and a few
    signs.
    """
    characters = [chr(code) for code in range(1, sys.maxunicode + 1, step) if not 0xD800 <= code < 0xE000]
    lines = say(tmp_path, *(c.encode() for c in characters))
    assert len(lines) == len(characters)
    for character, line in zip(characters, lines, strict=True):
        whole = character.encode()
        escaped = "".join(f"\\x{byte:02x}" for byte in whole).encode()
        assert line in (whole, escaped)
        if character.isprintable():
            assert line == whole
        kind, direction = unicodedata.category(character), unicodedata.bidirectional(character)
        if kind in ("Cc", "Zl", "Zp", "Co") or direction in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        ):
            assert line == escaped


def test_invalid_utf8(tmp_path):
    texts = [
        b"\x9b",
        b"a\xff",
        b"\xc2",
        b"\xe2\x80",
        b"\xc0\x9b",
        b"\xe0\x82\x9b",
        b"\xf0\x80\x82\x9b",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
    ]
    for text, line in zip(texts, say(tmp_path, *texts), strict=True):
        assert line.decode() == "".join(chr(b) if b < 0x80 else f"\\x{b:02x}" for b in text)


def test_a_long_line_is_cut_and_ends(tmp_path):
    (line,) = say(tmp_path, b"\x1b" * 100_000)
    assert 4000 < len(line) < 4096 and set(line) == set(rb"\x1b")


def test_the_launcher(tmp_path):
    done = subprocess.run(hooked.command("run", EVIL), capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (127, f"gpt-hook: error: {SHOWN}: command not found\n")


def test_kernels_and_libraries(tmp_path):
    folder = tmp_path / EVIL
    folder.mkdir()
    library = two_kernels(tmp_path)
    program = hooked.compile_c(tmp_path / "client", CLIENT % "libtwo.so")
    slim(library, tmp_path / "slim", keep="^one$")
    os.replace(tmp_path / "slim" / "libtwo.so", folder / "libtwo.so")
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = hooked.run(tmp_path / "t.mp", program, "one", EVIL, env=env)
    assert done.stdout == "0 500 " * 3
    assert done.stderr.startswith(f"gpt-hook: warning: {tmp_path}/{SHOWN}/libtwo.so: no code for kernel '{SHOWN}' (")
    assert done.stderr.count("\n") == 1 and done.stderr[:-1].isprintable()
    (diag,) = hooked.Trace(tmp_path / "t.mp").of("diag")
    assert diag["ref"] == EVIL


def test_libraries_that_replace_others(tmp_path):
    for name in ("slim", "lib"):
        (tmp_path / name).mkdir()
    source = "void tell(void) {}\n"
    library = hooked.compile_c(tmp_path / "lib" / "x.so", source, "-shared", "-fPIC", prelude=False)
    os.rename(library, tmp_path / "lib" / f"{EVIL}.so")
    (tmp_path / "slim" / f"{EVIL}.so").write_bytes(b"no ELF")
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    command = ("-c", code, tmp_path / "lib" / f"{EVIL}.so")
    done = hooked.run(tmp_path / "t.mp", sys.executable, *command, options=["--replace", tmp_path / "slim"])
    assert done.returncode == 0
    fact = f"not replaced: {tmp_path}/slim/{SHOWN}.so: is not a shared object of this machine"
    assert done.stderr == f"gpt-hook: warning: {tmp_path}/lib/{SHOWN}.so: {fact}\n"
