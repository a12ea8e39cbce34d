"""Possessive groups mean the same in every Python, whether they're used directly or rewritten as atomic groups."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.patterns import atomic, compiled
from gpt.ptx import tokens

FORMS = [tokens.COMMENT, tokens.LINE, tokens.WORD, tokens.MODIFIERS, tokens.NUMBER, tokens.STRING]
TEXT = st.text('/*\n#line 1".xX09eE+-aU:$ ', max_size=30)


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"a*+b", r"a*+b"),
        (r"(?:ab)*+c", r"(?>(?:ab)*)c"),
        (r"((?:a|(b)?+){0,9}+\)*+)", r"((?>(?:a|(?>(b)?)){0,9})\)*+)"),
        (r"[)(]*+([])(]+)++(?P<x>y){2,}+", r"[)(]*+(?>([])(]+)+)(?>(?P<x>y){2,})"),
        (r"[^])]\[(a)+(b)?", r"[^])]\[(a)+(b)?"),
    ],
)
def test_possessive_groups_become_atomic(pattern, written):
    assert atomic(pattern) == written
    re.compile(written)


def test_possessive_quantifiers_work_despite_a_python_bug():
    """https://github.com/python/cpython/issues/106052"""
    assert compiled("(?:ab?c)*+d").fullmatch("abcacd")
    assert compiled(r"(?:\s*+\.\w++(?:::\w++)*+)*+;").match(".a::b .c;")


@pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="this Python gets possessive groups wrong")
@given(st.sampled_from(FORMS), TEXT)
def test_both_forms_match_equally(form, text):
    left, right = (re.match(pattern, text, re.ASCII) for pattern in (form, atomic(form)))
    assert (left and left.span()) == (right and right.span())
