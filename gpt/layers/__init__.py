"""Name the module of a PyTorch model that each launch belongs to: 'gpt-hook run --layers' loads this into programs.

It replaces `torch.nn.Module.__call__` by a function that tells libgpthook.so which module is entered and left, and
calls the original. That happens before torch._dynamo is imported, which then takes the function for PyTorch's own, so
compiled code has the same graphs, breaks and guards as without it. Everything in a compiled region therefore belongs to
the compiled module.

A module is named by its path below the outermost module that is called, as in `named_modules()`: `layers.3.attn`. The
outermost one is named after its class.

In a backward pass, each node of the autograd graph belongs to the module whose forward pass created it. The engine runs
nodes in the reverse order of their creation. So only nodes at the borders of modules need a hook: the inputs and
outputs of each call. A node without a hook belongs to the same module as the node before it in its thread.

This uses only the standard library, and the functions of the PyTorch that the program imports.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Callable

BACKWARD = b" (backward)"
MOST_NODES = 1 << 16  # remembered per thread
MOST_DEPTH = 3  # levels of nested containers
MOST_ITEMS = 64  # limit per container
# Components that wrappers add to a path, such as torch.compile, DDP, FSDP and activation checkpointing.
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
DISTRIBUTED = frozenset(("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"))


class Recorder:
    """The functions in libgpthook.so, declared in runtime/hook/watch/watch.h. They're short, so they keep the GIL."""

    def __init__(self) -> None:
        """Raise AttributeError or OSError if the library isn't loaded."""
        import ctypes

        library = ctypes.PyDLL(None)
        self.enter = library.gpt_hook_layer
        self.enter.argtypes = [ctypes.c_char_p]
        self.leave = library.gpt_hook_layer_end
        self.leave.argtypes, self.leave.restype = [], None


class _Thread(threading.local):
    """The names of modules that a thread is in, and whether a module of its backward pass is open.

    PyTorch numbers the autograd nodes of a thread in the order of their creation.
    """

    def __init__(self) -> None:
        self.inside: list[bytes] = []
        self.backward = False
        self.nodes: set[int] = set()  # sequence numbers of autograd nodes that have a hook


class Names:
    """The names of modules, by id()."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self._roots: set[int] = set()  # modules in `known` that were outermost
        self._refs: dict[int, Any] = {}

    def add(self, module: Any, prefix: str) -> bytes:
        """Name a module that isn't known, and those below it. `prefix` is the enclosing module's name, or empty."""
        title = type(module).__name__
        own = f"{prefix}.{title}" if prefix else title
        path = prefix and f"{own}."
        for name, one in module.named_modules():
            words = [word for word in name.split(".") if word not in WRAPPERS]
            if title in DISTRIBUTED and words[0] == "module":
                del words[0]
            below = ".".join(words)
            if one is not module and (id(one) not in self.known or id(one) in self._roots):
                self._keep(one, path + below if below else f"{path}{type(one).__name__}")
        self._keep(module, own)
        self._roots.add(id(module))
        return self.known[id(module)]

    def _keep(self, module: Any, name: str) -> None:
        key = id(module)
        self.known[key] = name.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")
        self._roots.discard(key)
        self._refs[key] = weakref.ref(module, partial(self._forget, key))

    def _forget(self, key: int, _: Any) -> None:
        self.known.pop(key, None)
        self._refs.pop(key, None)
        self._roots.discard(key)


class Layers:
    """The functions that replace PyTorch's."""

    def __init__(self, recorder: Recorder) -> None:
        self.names = Names()
        self._thread = _Thread()
        self._enter, self._leave = recorder.enter, recorder.leave

    def wrap_call(self, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        """Return the function for torch.nn.Module.__call__."""
        enter, leave, thread, known, find = self._enter, self._leave, self._thread, self.names.known, self._find
        tag, has_grad = self._tag, torch._C.is_grad_enabled

        def _wrapped_call_impl(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if torch.compiler.is_compiling():  # Dynamo inlines calls of modules with hooks
                return original(self, *args, **kwargs)
            inside = thread.inside
            name = known.get(id(self)) or find(self, inside)
            if not enter(name):
                return original(self, *args, **kwargs)
            if has_grad():
                tag((args, kwargs) if kwargs else args, inside[-1] if inside else None)
            inside.append(name)
            try:
                result = original(self, *args, **kwargs)
            finally:
                inside.pop()
                leave()
            if has_grad():
                tag(result, name)
            return result

        _wrapped_call_impl.__module__, _wrapped_call_impl.__qualname__ = original.__module__, original.__qualname__
        return _wrapped_call_impl

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function for torch.autograd.graph._engine_run_backward."""

        def _engine_run_backward(outputs, *args, **kwargs):  # type: ignore[no-untyped-def]
            self._tag(outputs, None)  # a thread of the engine may still be in a module of the pass before
            try:
                return original(outputs, *args, **kwargs)
            finally:
                self._end_backward()

        return _engine_run_backward

    def _find(self, module: Any, inside: list[bytes]) -> bytes:
        return self.names.add(module, inside[-1].decode("utf-8", "replace") if inside else "")

    def _tag(self, value: Any, name: bytes | None, depth: int = MOST_DEPTH) -> None:
        """Assign the nodes that made these tensors to a module, or to none, unless they already belong to one."""
        nodes = self._thread.nodes
        for one in list(value.values())[:MOST_ITEMS] if isinstance(value, dict) else value if isinstance(
            value, (tuple, list)
        ) else (value,):  # fmt: skip
            if isinstance(one, (tuple, list, dict)):
                if depth:
                    self._tag(one, name, depth - 1)
                continue
            node = getattr(one, "grad_fn", None)
            if node is None or (number := node._sequence_nr()) in nodes:
                continue
            if len(nodes) >= MOST_NODES:
                nodes.clear()
            nodes.add(number)
            node.register_prehook(partial(self._on_backward, name and name + BACKWARD))

    def _on_backward(self, name: bytes | None, _: Any) -> None:
        self._end_backward()
        if name is not None:
            self._thread.backward = bool(self._enter(name))

    def _end_backward(self) -> None:
        if self._thread.backward:
            self._thread.backward = False
            self._leave()


class Patcher:
    """An import hook: it patches modules of PyTorch right after they have run."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module with the other finders, and let its loader call us."""
        if name not in self._patches:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None and spec.loader is not None:
                try:
                    spec.loader.exec_module = partial(_run, spec.loader.exec_module, self._patches.pop(name))
                except AttributeError:
                    _say(f"the loader of {name} can't be wrapped")
                return spec
        return None


def _run(original: Callable[[Any], None], patch: Callable[[Any], None], module: Any) -> None:
    original(module)
    try:
        patch(module)
    except Exception as error:  # another version of PyTorch: the program runs as usual
        _say(f"{type(error).__name__}: {error}")


def _place(owner: type, filename: str) -> None:
    """Make the functions of a class appear to be in a file that Dynamo skips."""
    for function in vars(owner).values():
        if isinstance(function, FunctionType):
            function.__code__ = _move(function.__code__, filename)


def _move(code: CodeType, filename: str) -> CodeType:
    inner = tuple(_move(one, filename) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inner)


def _say(text: str) -> None:
    if sys.stderr:
        print(f"gpt.layers: warning: no modules are recorded: {text}", file=sys.stderr)


def install() -> None:
    """Wait for PyTorch, if gpt-hook traces this process."""
    if not os.environ.get("GPT_HOOK_OUTPUT"):
        return
    try:
        layers = Layers(Recorder())
    except (AttributeError, ImportError, OSError):
        return

    def patch_modules(module: Any) -> None:
        for owner in (Layers, Names):
            _place(owner, module.__file__)
        module.Module.__call__ = layers.wrap_call(module.Module.__call__, module.torch)

    def patch_autograd(module: Any) -> None:
        module._engine_run_backward = layers.wrap_backward(module._engine_run_backward)

    sys.meta_path.insert(0, Patcher({"torch.nn.modules.module": patch_modules, "torch.autograd": patch_autograd}))
