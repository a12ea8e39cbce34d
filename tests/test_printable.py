"""Untrusted names never move the cursor, hide text or reorder it, however they reach a terminal."""

import json
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.printable import printable, printable_json
from gpt.stream import jsonl, records, wire
from tests.tiers import first
from tests.trace import forge

TOP = Path(__file__).parents[1]
HOSTILE = [
    "\x1b[2J\x1b]0;title\x07", "\x9b31m", "\x7f", "\r\n", "\x85", "\u2028\u2029", "\u202e", "\u2066", "\u200f",
    "\u200b", "\ufeff", "\U000e0041", "\u00ad",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_escaped_like_in_python(text):
    shown = printable(f"a{text}b")
    assert shown == "a" + repr(text)[1:-1] + "b" and shown.isascii() and shown.isprintable()


def test_plain_text_stays_unchanged():
    for text in ("", "libtorch_cuda.so", "naïve.so", "漢字", "[bold]x[/]", ":smile:", "a\\b"):
        assert printable(text) is text and printable_json(text) is text


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_printable_and_round_trips(value):
    line = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert all(unicodedata.category(c)[0] not in "CZ" or c == " " for c in line)


@pytest.mark.parametrize("text", first(*HOSTILE))
def test_lines_of_records_and_events(text):
    record = {"kind": "x", text: [text]}
    (line,) = jsonl.lines(record)
    assert line.isprintable() and jsonl.decode(json.loads(line)) == record
    data = forge.pack(forge.trace(forge.api(1, text), forge.calls([(1, 1, 1, 0)])))
    done = subprocess.run(["gpt-analyze", "events", "--json"], input=data, capture_output=True, check=True, timeout=60)
    (line,) = done.stdout.decode().splitlines()
    assert line.isprintable() and json.loads(line)["name"] == text


def on_terminal(code, *args):
    """Return the output of Python code on standard error, if that's a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code, *args], cwd=TOP, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    data = b""
    try:
        while block := os.read(ours, 4096):
            data += block
    except OSError:
        pass  # Linux reports a closed other side this way
    os.close(ours)
    process.communicate(timeout=60)
    return data.decode()


def test_progress_escapes_the_name():
    code = """
import sys
from gpt.base import messages
progress = messages.Progress(sys.argv[1])
progress._next = 0
progress.show(1, 2)
progress.clear()
"""
    shown = on_terminal(code, "a\x1b[2Jb\n" + "long" * 100)
    assert shown.startswith("\r\x1b[Ka\\x1b[2Jb\\nlong") and shown.endswith(": 50 %\r\x1b[K")
    assert shown.count("\x1b") == 2 and len(shown) < 100


def test_requested_traceback_escapes_names(tmp_path):
    path = tmp_path / "\x1b[2J.so"
    path.write_bytes(b"hello")
    done = subprocess.run(["gpt-extract", "-v", path], capture_output=True, timeout=60, check=False)
    assert done.returncode == 3 and b"\x1b" not in done.stderr
    bad = wire.pack(wire.header("x", [])) + wire.pack(records.make("library_end", path="x")) + b"\x91\x1b"
    done = subprocess.run(["gpt-patch", "-v", "-n", "-o", "x"], input=bad, capture_output=True, timeout=60, check=False)
    assert done.returncode == 3 and done.stderr.startswith(b"Traceback")


@pytest.mark.parametrize("script", ["gpt-debloat", "gpt-negativa", "gpt-trace"])
@pytest.mark.parametrize("text", ["\x1b[2J\x07", "\x9b31m", "\u202e", "\u2028", "\r\n", "\\033[2J"])
def test_scripts_show_names_without_what_is_in_them(script, text):
    done = subprocess.run([TOP / "bin" / script, f"-é{text}漢"], capture_output=True, timeout=60, check=False)
    line = done.stderr.decode()
    assert done.returncode == 2 and line.endswith("\n") and line[:-1].isprintable()
    assert "-é" in line and "漢'" in line and (text == printable(text)) == (text in line)
