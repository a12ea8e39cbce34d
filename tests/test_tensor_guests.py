"""gpt.tensors must not disturb programs: odd values, other profilers, coroutines, PyTorch's own tools."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import types

import pytest

from gpt import tensors
from gpt.tensors.types import find_pointer
from tests.tensor_likes import Interfaced, Pointed, callee, names, read


def test_the_end_of_the_stack_is_where_it_was():
    def deep(x, depth):
        return deep(x, depth + 1) if depth < 1 << 20 else 0

    def limit():
        with pytest.raises(RecursionError):
            deep(Pointed(), 0)
        return True

    with tensors.trace(also=lambda seen: None):
        assert limit()
        callee(Pointed())
    assert sys.getprofile() is None


def test_namespaces_of_others_are_left_alone():
    class Noted(dict):
        def __getitem__(self, key):
            asked.append(key)
            return dict.__getitem__(self, key)

    class Meta(type):
        @classmethod
        def __prepare__(cls, name, bases):
            return Noted()

        def __new__(cls, name, bases, space):
            return type.__new__(cls, name, bases, dict(space))

    def make():
        class Made(metaclass=Meta):
            x = Pointed()
            y = callee(x)

        return Made

    asked = []
    make()
    before, asked = asked, []
    with tensors.trace(also=lambda seen: None):
        make()
    assert asked == before and "x" in asked


def test_another_profiler_is_left_alone(capsys):
    events, found = [], []
    tensors._told.clear()
    sys.setprofile(before := lambda frame, event, arg: events.append(event))
    try:
        with tensors.trace(also=found.append):
            x = Pointed()
            callee(x)
        assert sys.getprofile() is before
    finally:
        sys.setprofile(None)
    assert "call" in events and [name for name, _ in names(found)] == ["x"]
    assert "another profiler" in capsys.readouterr().err


def test_faults_are_reported_once_and_the_program_continues(capsys):
    def fails(seen):
        raise ValueError("no")

    tensors._told.clear()
    with tensors.trace(also=fails):
        for _ in range(3):
            callee(Pointed())
    assert capsys.readouterr().err == "gpt.tensors: warning: ValueError: no\n"
    with pytest.raises(KeyError), tensors.trace(also=fails):
        raise KeyError(1)
    assert sys.getprofile() is None


def test_memory_that_changes_is_another_tensor():
    """Examples are `x.data = y`, a parameter that's moved, and storage that's freed and reallocated."""
    found, x = [], Pointed(0x100)
    with tensors.trace(also=found.append):
        for address in (0x100, 0x200, 0x200, 0, 0x200):
            x.address = address
            callee(x, [x])
    seen = [one for one in found if one.name == "rest[0][0]"]
    assert [one.facts.first for one in seen] == [0x100, 0x200, 0x200] and len({one.id for one in seen}) == 3


def test_coroutines_and_generators_may_be_wrapped():
    found = []

    @tensors.trace(also=found.append)
    async def wait(x):
        await asyncio.sleep(0)
        return callee(x)

    @tensors.trace(also=found.append)
    def generate(x):
        got = yield callee(x)
        return got

    async def both():
        return await asyncio.gather(wait(Pointed()), wait(Pointed()))

    assert len(asyncio.run(both())) == 2
    running = generate(Pointed())
    assert next(running).address == 0x9000
    with pytest.raises(StopIteration, match="7"):
        running.send(7)
    assert [name for name, _ in names(found)].count("first") == 3 and sys.getprofile() is None


def test_a_block_may_be_left_in_another_thread():
    """One thread may start a generator, and another may finish it."""

    def generate():
        with tensors.trace(also=lambda seen: None):
            yield callee(Pointed())

    running = generate()
    thread = threading.Thread(target=lambda: next(running))
    thread.start()
    thread.join()
    assert list(running) == [] and sys.getprofile() is None


def test_an_odd_value_hides_no_others(capsys):
    class Meta(type):
        def __hash__(cls):
            raise ValueError("odd")

    class Odd(metaclass=Meta):
        pass

    def work():
        first, second = Odd(), Pointed()
        return callee(second, first)

    found = []
    tensors._told.clear()
    with tensors.trace(also=found.append):
        work()
    assert ("second", work.__qualname__) in names(found) and ("first", "callee") in names(found)
    assert capsys.readouterr().err == "gpt.tensors: warning: ValueError: odd\n"


@pytest.mark.parametrize("closed", [None, io.StringIO()])
def test_where_nothing_can_be_said_nothing_is(monkeypatch, capsys, closed):
    def fails(seen):
        raise ValueError("no")

    if closed:
        closed.close()
    tensors._told.clear()
    monkeypatch.setattr(sys, "stderr", closed)
    with tensors.trace(also=fails):
        callee(Pointed())
    tensors.record(x=Pointed(), also=fails)
    assert capsys.readouterr().out == ""


def test_tensors_are_not_touched_while_tracing_or_lazy(monkeypatch):
    """gpt.tensors doesn't touch tensors while PyTorch's tracer records, and doesn't ask for a lazy clone's address,
    because that would copy the data.
    """
    base = type("Tensor", (Pointed,), {"__module__": "torch", "data_ptr": lambda self: clones.append(self) or 0x500})
    torch, clones, tracing = types.ModuleType("torch"), [], [object()]
    torch.Tensor = base
    torch._C = types.SimpleNamespace(
        _get_tracing_state=lambda: tracing[0],
        _is_cow_tensor=lambda value: True,
        _data_address=lambda value: 0x1000,
    )
    base.storage_offset = lambda self: 4
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert read(base()) is None
    tracing[0] = None
    assert read(base()).first == 0x1010 and not clones
    assert find_pointer(base)(base()) == 0x1000 and not clones
    assert find_pointer(Pointed)(Pointed(0x20)) == 0x20 and not find_pointer(Interfaced)
