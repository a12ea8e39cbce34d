"""Numbers in options: decimal digits, and none of the other forms that int() or float() accept."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.numbers import parse_float, parse_int
from tests.tiers import every

ODD = [" 3", "3 ", "+3", "3_0", "\u0663", "\uff13", "3\n", "0x3", "", "--3", "3\0", "²"]
ODD_FRACTIONS = [*ODD, "nan", "inf", "-inf", "infinity", "1e999", "1_0.5", ".", "1.5 ", "1e", "1.5f", "0x1p3"]


@pytest.mark.parametrize("text", ODD)
def test_malformed_whole_numbers_are_refused(text):
    with pytest.raises(ValueError, match="not a whole number"):
        parse_int(text)


@pytest.mark.parametrize("text", ODD_FRACTIONS)
def test_malformed_fractions_are_refused(text):
    with pytest.raises(ValueError, match="not a number"):
        parse_float(text)


@given(st.integers())
def test_each_whole_number_is_read(number):
    assert parse_int(str(number)) == parse_int(number) == number
    assert parse_int(f"{'-' * (number < 0)}00{abs(number)}") == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_each_fraction_is_read(number):
    assert parse_float(repr(number)) == parse_float(number) == number


@pytest.mark.parametrize(
    "words",
    every(2, [
        ["gpt-analyze", "gaps", "--time", " 1,2"], ["gpt-analyze", "gaps", "--time", "0,1_0"],
        ["gpt-analyze", "gaps", "--time", "nan,2"], ["gpt-analyze", "gaps", "--time", "0,\u0663"],
        ["gpt-analyze", "gaps", "--cuda-stream", "0b1"], ["gpt-analyze", "gaps", "--cuda-stream", "1_0"],
        ["gpt-analyze", "gaps", "--cuda-stream", " 0x7f"], ["gpt-debloat", "--arch", "\u0669.0", "-r", "."],
        ["gpt-debloat", "--arch", "sm_90", "--recompress= 3", "-r", ".", "-o", "out"],
        ["gpt-hook", "run", "-p", "gmem_bytes", "--wait", "0x10", "--", "true"],
        ["gpt-hook", "run", "-p", "gmem_bytes", "--wait", " 3", "--", "true"],
        ["gpt-hook", "run", "-p", "gmem_bytes", "--launch-skip", "+3", "--", "true"],
        ["gpt-hook", "run", "-p", "gmem_bytes", "--sample", "1/ 3", "--", "true"],
        ["gpt-hook", "run", "-p", "gmem_bytes", "--max-memory", "0x3M", "--", "true"],
        ["gpt-hook", "ctl", " 1", "status"], ["gpt-hook", "ctl", "+1", "status"],
    ]),
)  # fmt: skip
def test_other_words_with_numbers(words, tmp_path):
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not list(tmp_path.iterdir()) or words[0] == "gpt-debloat"
