"""Demangled kernel names, including malicious ones."""

import time

import pytest

from gpt.screen import demangle


def test_names_are_those_of_the_source():
    names = ["_Z12matrixMulGPUPKfS0_Pfi", "plain", "_Z6matmulIfEvPT_i", "_Zgarbage", "", "\udcff", "_Z1av"]
    assert demangle.demangle(names) == [
        "matrixMulGPU(float const*, float const*, float*, int)",
        "plain",
        "void matmul<float>(float*, int)",
        "_Zgarbage",
        "",
        "\udcff",
        "a()",
    ]
    assert demangle.demangle([]) == [] and demangle.demangle(["a"]) == ["a"]


@pytest.mark.full
def test_endless_name_expansion_is_kept_as_it_is():
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    evil = "_Z1fSt4pairIiiE" + "".join(f"S_IS{d}_S{d}_E" for d in digits)  # each level doubles the length
    start = time.monotonic()
    found = demangle.demangle(["_Z1av", evil, "_Z1bv"])
    assert found[:2] == ["a()", evil]
    assert time.monotonic() - start < 20


def test_name_is_looked_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr(demangle, "_known", {})
    monkeypatch.setattr(demangle, "_size", 0)
    monkeypatch.setattr(demangle, "_ask", lambda names: asked.append(names) or [f"<{name}>" for name in names][:2])
    assert demangle.demangle(["_Za", "_Zb", "_Za"]) == ["<_Za>", "<_Zb>", "<_Za>"]
    assert demangle.demangle(["_Zb", "_Zc", "_Zd", "_Zevil", "_Ze"]) == ["<_Zb>", "<_Zc>", "<_Zd>", "_Zevil", "_Ze"]
    assert demangle.demangle(["_Zevil", "_Ze"]) == ["_Zevil", "<_Ze>"]
    monkeypatch.setattr(demangle, "MAX_KNOWN", 0)
    assert demangle.demangle(["_Za"]) == ["<_Za>"]
    assert asked == [["_Za", "_Zb"], ["_Zc", "_Zd", "_Zevil", "_Ze"], ["_Ze"], ["_Za"]]


def test_many_names():
    names = [f"_Z3abcILi{i}EEvv" for i in range(5000)]
    assert demangle.demangle(names) == [f"void abc<{i}>()" for i in range(5000)]
