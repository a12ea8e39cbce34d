"""Demangled kernel names, including malicious ones."""

import time

import pytest

from gpt.screen.demangle import demangle


def test_names_are_those_of_the_source():
    names = ["_Z12matrixMulGPUPKfS0_Pfi", "plain", "_Z6matmulIfEvPT_i", "_Zgarbage", "", "\udcff", "_Z1av"]
    assert demangle(names) == [
        "matrixMulGPU(float const*, float const*, float*, int)",
        "plain",
        "void matmul<float>(float*, int)",
        "_Zgarbage",
        "",
        "\udcff",
        "a()",
    ]
    assert demangle([]) == [] and demangle(["a"]) == ["a"]


@pytest.mark.full
def test_a_name_that_stands_for_a_text_without_end_stays_as_it_is():
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    evil = "_Z1fSt4pairIiiE" + "".join(f"S_IS{d}_S{d}_E" for d in digits)  # each is twice as long as the one before
    start = time.monotonic()
    found = demangle(["_Z1av", evil, "_Z1bv"])
    assert found[:2] == ["a()", evil]
    assert time.monotonic() - start < 20


def test_many_names():
    names = [f"_Z3abcILi{i}EEvv" for i in range(5000)]
    assert demangle(names) == [f"void abc<{i}>()" for i in range(5000)]
