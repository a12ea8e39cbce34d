"""Compute capabilities on command lines."""

import pytest

from gpt.base.arch import KNOWN, find_arch, parse_arch, parse_archs
from gpt.base.errors import UsageError


def test_spellings_of_people_and_files_are_parsed():
    assert [str(a) for a in parse_archs("sm_90a,9.0,,10.0f,sm_90,12.1")] == ["sm_90a", "sm_90", "sm_100f", "sm_121"]
    assert [str(a) for a in parse_archs("90,75,100a")] == ["sm_90", "sm_75", "sm_100a"]
    assert parse_archs("") == []
    assert [str(parse_arch(name)) for name in KNOWN] == [str(find_arch(name)) for name in KNOWN] == list(KNOWN)
    assert find_arch("9.0") is None  # files never use this spelling


@pytest.mark.parametrize("text", ["sm90", "compute_90", "SM_90", " sm_90", "sm_9.0", "lto_90"])
def test_a_misspelled_arch_gets_a_suggestion(text):
    with pytest.raises(UsageError, match=r"^--arch: not a compute capability: .*did you mean sm_90\?"):
        parse_archs(f"sm_80,{text}")


@pytest.mark.parametrize("text", ["foo", "sm_", "sm_9", "9", "sm_90b", "sm_\u0669\u0660", "9" * 5000, ","])
def test_an_unknown_arch_lists_the_known_ones(text):
    with pytest.raises(UsageError, match=r"there are sm_75, .*sm_90a, ") as error:
        parse_archs(text)
    assert len(str(error.value)) < 400
