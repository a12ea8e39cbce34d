"""Launches with probes during captures that begin while other threads wait. On the simulated device."""

import shutil

import pytest

from tests.runtime import graphing, hooked, probing
from tests.tiers import first, soak


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("captures"), graphing.CAPTURES)


def check(folder, program, stream, turns, moment):
    """Check that no capture contains our events or is broken by them, and that all data is collected."""
    options = ("-p", "gmem_bytes", "--calls", "none", "--complete")
    trace = probing.good(folder, program, *options, arguments=(probing.PTX, stream, turns, moment))
    assert graphing.check_captures(trace, turns) == []


@probing.in_both_forms
@pytest.mark.parametrize("turns", [100, soak(100000)])
@pytest.mark.parametrize("stream", first(*graphing.CAPTURED))
def test_a_capture_begins_while_another_thread_collects(tmp_path, program, stream, turns):
    check(tmp_path, program, stream, turns, 10)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow") / "runtime"
    shutil.copytree(hooked.runtime(), folder)
    more = (hooked.ROOT / "tests/runtime/slow_answers.c", "-Wl,--wrap=hook_find_probe_calls")
    hooked.build_hook(folder / "libgpthook.so", *more)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("stream", graphing.CAPTURED)
def test_a_capture_begins_right_after_the_look_whether_there_is_one(tmp_path, program, slow, stream, monkeypatch):
    monkeypatch.setenv("GPT_RUNTIME", str(slow))
    check(tmp_path, program, stream, 20, 10000)
