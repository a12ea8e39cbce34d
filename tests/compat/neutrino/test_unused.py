"""Options that select no kernel: gpt-neutrino lists the available ones."""

import pytest

from gpt.compat.neutrino.writer import find_unused


@pytest.mark.parametrize(
    ("kernels", "filter_", "names", "facts"),
    [
        ("fo", "", ["foo", "bar"], []),
        ("", "", ["foo"], []),
        ("x", "", [], []),
        ("x:fo:y", "", ["foo"], ["-k x:y matches no kernel; the program looked up: foo"]),
        ("x", "", [*"abcdefg"], ["-k x matches no kernel; the program looked up: a, b, c, d, e and 2 more"]),
        ("", "o:r", ["foo", "bar"], ["--filter leaves no kernel; it drops: foo, bar"]),
        ("foo", "o", ["foo", "bar"], ["--filter leaves no kernel; it drops: foo"]),
        ("", "o", ["foo", "bar"], []),
    ],
)
def test_unused_filters_name_the_kernels_looked_up(kernels, filter_, names, facts):
    assert list(find_unused(kernels, filter_, names)) == facts
