"""Record the names of tensors in gpt-hook's trace.

    import gpt.tensors

    with gpt.tensors.trace():            # tensors in variables of all functions that run in here
        out = attention(q, k, v)

    @gpt.tensors.trace()                 # while this function runs
    def step(batch): ...

    gpt.tensors.record(dict(model.named_parameters()), batch=batch)  # with names that you choose

Each tensor on the device gets a `tensor` record when it's first seen under a name, with its name, function, file and
line, type, shape, address and size, and a `tensor_end` record when the program releases it. Both have time stamps on
the same clock as launches. gpt/trace/tensors.py finds the tensor at an address and time.

Programs import this in their own environments: `gpt-hook run --tensors` puts a folder with just this package on
PYTHONPATH. So it must run on Python 3.8 and later, and import nothing else of GPT.

While `trace` is active, the variables of a function are inspected when it begins and returns, and when it calls another
one. So a tensor has its name before the first kernel that's launched with it, but the result of a call only gets its
name after the kernels that computed it. Python doesn't report calls of objects that aren't functions, such as kernels
of ctypes and CuPy. Names are then recorded at the next call, or when the function returns. Lists, tuples and
dictionaries in variables are searched too, and PyTorch modules for their own parameters and buffers. A tensor that gets
other memory, for example by `x.data = y`, is another tensor from then on.

`trace` only affects the thread that enters it. Other threads, for example in a backward pass, need their own. In a
wrapped generator or coroutine, it also stays active while the generator or coroutine is suspended, so it covers
everything that the thread does in the meantime.
Asynchronous generators aren't supported.

A tensor is anything with data_ptr() (PyTorch, Paddle), __cuda_array_interface__ (CuPy, numba, JAX) or __dlpack__. This
package imports none of these libraries, only the standard library. It doesn't keep memory of tensors alive, except that
up to Python 3.12 a deleted variable lives until the next call of its function, as in every profiler.

Without gpt-hook, and in processes that it doesn't trace, nothing happens. If another profiler is active
(`sys.getprofile`), it's left alone, and variables are only inspected where the block begins and ends. Compiled code of
torch.compile runs unchanged: `trace` uses a Python profile function, which Dynamo knows from cProfile. But a function
that enters `trace` itself is compiled in two parts.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import os
import sys
import threading
import weakref
from types import CodeType, FrameType, TracebackType
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Tuple, TypeVar

from gpt.tensors.types import Reader, TensorFacts, find_pointer, find_reader, is_module, iter_parameters

_Function = TypeVar("_Function", bound=Callable[..., Any])

MOST_ITEMS = 64  # limit per list, tuple or dictionary
MOST_DEPTH = 2  # levels of nested containers
MOST_TYPES = 10_000  # limit of each cache
CONTAINERS = (list, tuple, dict)
OPTIMIZED = 1  # CO_OPTIMIZED: code of a function, which has local variables
GENERATOR, COROUTINE = 0x20, 0x80  # CO_GENERATOR, CO_COROUTINE
# Compilers handle the tensors of other code under meaningless names, and they have a lot of code.
NOT_LOOKED_AT = (
    "/torch/_dynamo/", "/torch/_functorch/", "/torch/_inductor/", "/torch/_subclasses/", "/torch/fx/",
    "/sympy/", "/triton/compiler/", "/triton/language/", "<frozen ", "/gpt/tensors/",
)  # fmt: skip


class Seen(NamedTuple):
    """A tensor with a name. `id` is its number in the process, and `facts` describe its memory."""

    id: int
    name: str
    facts: TensorFacts
    function: str | None
    file: str | None
    line: int | None


Sink = Callable[[Seen], object]
_Key = Tuple[Any, ...]  # where a tensor is: id() of the code, variable, and keys inside it


class _Other(enum.Enum):
    """Markers that take the place of a reader, for containers and for types that haven't been seen yet."""

    CONTAINER = enum.auto()
    NEW = enum.auto()


class _Known:
    """A tensor that has been seen. `ref` is None if there can't be weak references to it."""

    __slots__ = ("begin", "facts", "id", "names", "pointer", "ref")

    def __init__(self, value: Any, facts: TensorFacts) -> None:
        self.id = next(_ids)
        self.facts = facts
        self.names: set[_Key] = set()
        self.ref: weakref.ref[Any] | None = None
        self.pointer = find_pointer(type(value))
        self.begin = self.pointer and self.pointer(value)

    def is_as_before(self, value: Any, key: _Key) -> bool:
        """Return whether the object has been seen under this name, and still has the same memory."""
        if self.ref is None or key not in self.names:
            return False
        return self.pointer is None or self.pointer(value) == self.begin


_ids = itertools.count(1)
_known: dict[int, _Known] = {}  # by id() of the object
_readers: dict[type, Reader | _Other | None] = {}  # None stands for types that aren't tensors
_looked_at: dict[int, tuple[CodeType, bool]] = {}  # by id(); an entry keeps its code alive, so ids stay unique
_told: set[str] = set()
os.register_at_fork(after_in_child=_known.clear)  # these tensors aren't in the child's trace


class _Hook:
    """The functions in libgpthook.so, which are declared in runtime/hook/watch/watch.h. They're short, so they don't
    release the GIL.
    """

    def __init__(self) -> None:
        """Raise AttributeError or OSError if the library isn't loaded."""
        import ctypes

        library = ctypes.PyDLL(None)
        self._record = library.gpt_hook_tensor
        u64, text = ctypes.c_uint64, ctypes.c_char_p
        self._record.argtypes = [u64, text, u64, u64, u64, text, ctypes.c_void_p, u64, text, text, u64]
        self.end = library.gpt_hook_tensor_end
        self.end.argtypes, self.end.restype = [u64], None
        self._shape = ctypes.c_uint64

    def record(self, seen: Seen) -> bool:
        """Write a tensor record. Return False if recording is off."""
        low, size, first, dtype, shape = seen.facts
        sizes = (self._shape * len(shape))(*shape)
        texts = _encode(seen.name), _encode(dtype), _encode(seen.function), _encode(seen.file)
        name, type_, function, file = texts
        number = seen.id, name, low, size, first, type_, sizes, len(shape), function, file, seen.line or 0
        return bool(self._record(*number))


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")


@functools.lru_cache(maxsize=None)
def _find_hook() -> _Hook | None:
    if not os.environ.get("GPT_HOOK_OUTPUT"):
        return None
    try:
        return _Hook()
    except (AttributeError, ImportError, OSError):
        return None


def _say_once(text: str) -> None:
    if text not in _told and sys.stderr:  # print(file=None) would write to standard output
        _told.add(text)
        with contextlib.suppress(Exception):  # it may be closed, for example
            print(f"gpt.tensors: warning: {text}", file=sys.stderr)


class trace:
    """Records the tensors in variables while a block or a function runs, as explained above. `also` is called for each
    tensor.

    If there are errors here or in `also`, they're printed once on standard error, and the block runs as usual.
    """

    def __init__(self, also: Sink | None = None) -> None:
        self._also = also

    def __enter__(self) -> trace:
        if not (_find_hook() or self._also):
            return self
        _see_variables(sys._getframe(1), self._also)
        current = sys.getprofile()
        if current is None:
            sys.setprofile(self._on_event)
        elif not _is_ours(current):
            _say_once("another profiler is active: variables are read only where the block begins and ends")
        _entered.append(current is None)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if not (_find_hook() or self._also):
            return
        if _entered.pop() and _is_ours(sys.getprofile()):
            sys.setprofile(None)
        _see_variables(sys._getframe(1), self._also)
        _forget_variables(sys._getframe(1))

    def __call__(self, function: _Function) -> _Function:
        """Wrap a function. A coroutine or generator is traced while it runs."""
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if flags & COROUTINE:

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with trace(self._also):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]
        if flags & GENERATOR:

            @functools.wraps(function)
            def iterated(*args: Any, **kwargs: Any) -> Any:
                with trace(self._also):
                    return (yield from function(*args, **kwargs))

            return iterated  # type: ignore[return-value]

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with trace(self._also):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        try:
            if event == "call":
                if frame.f_back is not None:
                    _see_variables(frame.f_back, self._also)
                _see_variables(frame, self._also)
            elif event == "return" or (event == "c_call" and getattr(arg, "__module__", None) != "builtins"):
                _see_variables(frame, self._also)
        except Exception:  # the stack may be exhausted, so this isn't even reported
            pass


class _Entered(threading.local):
    """The blocks that a thread has entered, and whether each of them has set the profile function. Tasks may leave
    blocks in any order.

    A generator may leave a block in a different thread than the one in which it entered it. In that case, the blocks of
    this thread don't change.
    """

    def __init__(self) -> None:
        self._blocks: list[bool] = []
        self.append = self._blocks.append

    def pop(self) -> bool:
        return bool(self._blocks) and self._blocks.pop()


_entered = _Entered()


def _is_ours(profiler: Any) -> bool:
    return isinstance(getattr(profiler, "__self__", None), trace)


def record(tensors: Mapping[str, Any] | None = None, /, *, also: Sink | None = None, **named: Any) -> None:
    """Record tensors under these names, with the function and the line of the caller."""
    hook = _find_hook()
    if not (hook or also):
        return
    frame = sys._getframe(1)
    _choose(frame.f_code)
    try:
        for name, value in itertools.chain((tensors or {}).items(), named.items()):
            _look(str(name), value, frame, also, MOST_DEPTH, (id(frame.f_code), str(name)))
    except Exception as error:
        _say_once(f"{type(error).__name__}: {error}")


def _see_variables(frame: FrameType, also: Sink | None) -> None:
    try:
        code = frame.f_code
        place = id(code)
        looked_at = _looked_at.get(place) or _choose(code)
        if not looked_at[1]:
            return
        for name, value in _variables(frame, code):
            try:
                if _readers.get(type(value), _Other.NEW) is not None:
                    known = _known.get(id(value))
                    if known is None or not known.is_as_before(value, (place, name)):
                        _look(name, value, frame, also, MOST_DEPTH, (place, name))
            except Exception as error:  # from a value or a sink: continue with the other variables
                _say_once(f"{type(error).__name__}: {error}")
    except Exception as error:  # our own error must not reach the program
        _say_once(f"{type(error).__name__}: {error}")


def _choose(code: CodeType) -> tuple[CodeType, bool]:
    if len(_looked_at) >= MOST_TYPES:
        _looked_at.clear()
    wanted = not any(part in code.co_filename for part in NOT_LOOKED_AT)
    return _looked_at.setdefault(id(code), (code, wanted))


def _variables(frame: FrameType, code: CodeType) -> Iterable[tuple[str, Any]]:
    found = frame.f_locals
    if not code.co_flags & OPTIMIZED:  # it's a class, or a module, which may have many more names than are used here
        if type(found) is not dict:
            return ()
        return [(name, found[name]) for name in code.co_names if name in found]
    return list(found.items())


def _forget_variables(frame: FrameType) -> None:
    """Clear the copy of `f_locals` that a frame keeps up to Python 3.12, unless the program has a reference to it."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & OPTIMIZED:
        found = frame.f_locals
        if sys.getrefcount(found) == 3:  # references: the frame's, ours, and the argument
            found.clear()


def _look(name: str, value: Any, frame: FrameType, also: Sink | None, depth: int, key: _Key) -> None:
    type_ = type(value)
    reader = _readers.get(type_, _Other.NEW)
    if reader is _Other.NEW:
        if len(_readers) >= MOST_TYPES:
            _readers.clear()
        inside = issubclass(type_, CONTAINERS) or is_module(type_)
        reader = _readers[type_] = _Other.CONTAINER if inside else find_reader(type_)
    if reader is _Other.CONTAINER:
        form, items = _items(name, value) if depth else ("", ())
        for index, one in items:
            if _readers.get(type(one), _Other.NEW) is not None:
                known, inner = _known.get(id(one)), (key[0], name, index)
                if known is None or not known.is_as_before(one, inner):
                    _look(form.format(index), one, frame, also, depth - 1, inner)
    elif not (reader is None or isinstance(reader, _Other) or name == "self"):  # `self` in its own method
        _see(name, value, reader, frame, also, key)


def _items(name: str, value: Any) -> tuple[str, Iterable[tuple[Any, Any]]]:
    """Return the first items of a container, and a format for their names.

    A list is skipped if its first item isn't a tensor.
    """
    escaped = name.replace("{", "{{").replace("}", "}}")
    form = escaped + "[{!r}]"
    if isinstance(value, dict):
        items = list(itertools.islice(dict.items(value), MOST_ITEMS))
        return form, [(key, one) for key, one in items if isinstance(key, (str, int))]
    if isinstance(value, tuple):
        return form, enumerate(tuple.__getitem__(value, slice(MOST_ITEMS)))
    if isinstance(value, list):
        first = list.__getitem__(value, slice(MOST_ITEMS))
        return form, () if first and _readers.get(type(first[0]), _Other.NEW) is None else enumerate(first)
    return (type(value).__name__ if name == "self" else escaped) + ".{}", iter_parameters(value)


def _see(name: str, value: Any, reader: Reader, frame: FrameType, also: Sink | None, key: _Key) -> None:
    code, known = frame.f_code, _known.get(id(value))
    facts = reader(value)
    if facts is None:
        if known is not None and known.pointer and known.pointer(value) != known.begin:
            _end(id(value))
        return
    if known is None or known.facts != facts:
        known = _Known(value, facts)
        _keep(value, known)
    if key in known.names:
        return
    seen = Seen(known.id, name, facts, getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno)
    hook = _find_hook()
    if hook and hook.record(seen):
        known.names.add(key)
    if also:
        known.names.add(key)
        also(seen)


def _end(key: int) -> None:
    """Record the end of a tensor, because its object now has different memory, or none."""
    before, hook = _known.pop(key, None), _find_hook()
    if before is not None and before.ref is not None and hook:
        hook.end(before.id)


def _keep(value: Any, known: _Known) -> None:
    key, hook = id(value), _find_hook()
    _end(key)

    def gone(_: Any, known: _Known = known, table: dict[int, _Known] = _known) -> None:
        if table.get(key) is known:
            del table[key]
            if hook:
                hook.end(known.id)

    try:
        known.ref = weakref.ref(value, gone)
    except TypeError:  # it doesn't support weak references
        pass
    _known[key] = known
