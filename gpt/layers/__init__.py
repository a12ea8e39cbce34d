"""Name the module of a PyTorch model that each launch belongs to: 'gpt-hook run --layers' loads this into programs.

Calls of `torch.nn.Module.__call__` pass through a C function in libgpthook.so, which records the module that is entered
and left (runtime/hook/watch/layers_python.c). The Python function itself isn't changed, and torch._dynamo sees the same
as before, so it makes the same graphs, breaks and guards. Work inside a compiled region belongs to the compiled module,
unless comments in Inductor's code name a module in it (compiled.py).

A module is named by its path below the outermost module that is called, as in `named_modules()`: `layers.3.attn`. The
outermost one is named after its class.

In a backward pass, each node of the autograd graph belongs to the module whose forward pass created it. The engine runs
nodes in the reverse order of their creation. So only nodes at the borders of modules, which belong to the inputs and
outputs of calls, get a hook. A node without a hook belongs to the same module as the node before it in its thread.

This uses only the standard library, and the functions of the PyTorch that the program imports.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from contextlib import nullcontext
from functools import lru_cache, partial, update_wrapper, wraps
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Iterator

BACKWARD = b" (backward)"
BACKWARD_PASS = b"backward()"  # nodes that were made outside of modules
# Components that wrappers add to a path, such as torch.compile, DDP, FSDP and activation checkpointing.
WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
DISTRIBUTED = frozenset(("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"))
# Python's functions, in the order of struct gpt_python in runtime/hook/watch/watch.h.
FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyObject_GetAttr", "PyObject_CallFunctionObjArgs", "PyObject_CallMethodObjArgs",
    "PyObject_Call",
    "PyCFunction_NewEx", "PyLong_FromVoidPtr", "PyLong_AsLongLong", "PyBytes_AsString", "PyDict_GetItem", "PyDict_Next",
    "PyTuple_Size", "PyTuple_GetItem", "PyList_Size", "PyList_GetItem", "PyType_IsSubtype", "PyType_GetFlags",
    "PyErr_ExceptionMatches", "PyErr_Clear",
)  # fmt: skip
# Functions whose work is set-up, by Python module: patterns of their names, and the kind of set-up. Their launches
# belong to none of the program's modules.
TUNING, WEIGHTS = b"autotuning", b"weights"
SET_UP = {
    "torch._inductor.compile_fx": (b"compilation", r"_?compile_fx(_inner)?"),
    "torch._inductor.select_algorithm": (TUNING, r"AlgorithmSelectorCache\.__call__"),
    "torch._inductor.runtime.benchmarking": (TUNING, r"\w+\.benchmark\w*"),
    "torch._inductor.runtime.triton_heuristics": (
        TUNING, r"CachingAutotuner\.(autotune_to_one_config|coordinate_descent_tuning|benchmark_all_configs)"
    ),
    "triton.runtime.autotuner": (TUNING, r"Autotuner\._bench"),
    "torch.nn.init": (WEIGHTS, r"[a-z]\w*_|_no_grad_\w+"),
    "torch.nn.modules.module": (WEIGHTS, r"Module\.(_apply|apply|load_state_dict)"),
    "torch.serialization": (WEIGHTS, r"load"),
    "safetensors.torch": (WEIGHTS, r"load(_file|_model)?"),
    "transformers.modeling_utils": (WEIGHTS, r"PreTrainedModel\.(from_pretrained|init_weights)"),
}  # fmt: skip
# Functions whose work outside of modules has a row of its own.
FUNCTIONS_OUTSIDE = {
    "torch.autograd": r"backward|grad",
    "torch.nn.functional": r"\w+_loss|(binary_)?cross_entropy(_with_logits)?|kl_div",
    "torch.nn.utils.clip_grad": r"clip_grad_norm_|clip_grad_value_",
    "torch.amp.grad_scaler": r"GradScaler\.(scale|unscale_|step|update)",
    "transformers.generation.utils": r"GenerationMixin\.generate",
}
# Python 3.11 inlines calls of Python functions even if their vectorcall isn't Python's own.
INLINES = sys.version_info[:2] == (3, 11)
WORD = 8  # bytes of a pointer
VECTORCALL_OFFSET = 5  # words of a PyTypeObject between its PyObject and tp_vectorcall_offset


class Recorder:
    """The functions in libgpthook.so, declared in runtime/hook/watch/watch.h. They're short, so they keep the GIL."""

    def __init__(self) -> None:
        """Raise AttributeError, ImportError or OSError if the library isn't loaded."""
        import ctypes

        self._ctypes = ctypes
        library = ctypes.PyDLL(None)
        self._wrap = library.gpt_hook_wrap_calls
        self._wrap.argtypes = [ctypes.py_object, ctypes.c_size_t, ctypes.c_void_p]
        self.stop_tagging = library.gpt_hook_stop_tagging
        self.stop_tagging.argtypes, self.stop_tagging.restype = [], None
        self._wrap_backward = library.gpt_hook_wrap_backward
        self._wrap_backward.argtypes, self._wrap_backward.restype = [ctypes.py_object], ctypes.py_object
        self._name_calls = library.gpt_hook_name_calls
        self._name_calls.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.py_object]
        self.enter_outside = library.gpt_hook_layer_outside
        self.enter_outside.argtypes = [ctypes.c_char_p]
        self.leave = library.gpt_hook_layer_end
        self.leave.argtypes, self.leave.restype = [], None
        self._new_region = library.gpt_hook_new_region
        self._new_region.argtypes, self._new_region.restype = [], ctypes.py_object
        self.new_hook = library.gpt_hook_new_node_hook  # call `wrap` before it
        self.new_hook.argtypes, self.new_hook.restype = [ctypes.py_object], ctypes.py_object

    def wrap(self, function: FunctionType, objects: tuple[Any, ...]) -> None:
        """Make all calls of a function pass through the library. `objects` are the last members of struct gpt_python.

        Raises RuntimeError or AttributeError if functions have another form in this version of Python.
        """
        api, pointer = self._ctypes.pythonapi, self._ctypes.c_void_p
        head = object.__basicsize__
        place = self._ctypes.c_ssize_t.from_address(id(FunctionType) + head + VECTORCALL_OFFSET * WORD).value
        addresses = [pointer.from_buffer(getattr(api, name)).value for name in FUNCTIONS]
        setting = getattr(api, "PyFunction_SetVectorcall", None)
        before = [self._find_vectorcall(function), setting and pointer.from_buffer(setting).value]
        after = [*map(id, objects), head - WORD]
        given = (pointer * (len(before) + len(addresses) + len(after)))(*before, *addresses, *after)
        if not 0 < place < FunctionType.__basicsize__ or not self._wrap(function, place, given):
            raise RuntimeError("this version of Python isn't supported")

    def name_calls(self, function: FunctionType, name: bytes | None, kind: bytes | None) -> bool:
        """Record a range during all calls of a function. Call `wrap` first. Returns False if that's impossible."""
        return isinstance(function, FunctionType) and bool(self._name_calls(function, name, kind))

    def wrap_backward(self, original: FunctionType) -> Any:
        """Return the function for torch.autograd._engine_run_backward. Call `wrap` first."""
        return self._wrap_backward(original)

    def new_region(self) -> Any:
        """Return the function that compiled code calls. Call `wrap` first."""
        return self._new_region()

    def _find_vectorcall(self, function: FunctionType) -> int | None:
        find = getattr(self._ctypes.pythonapi, "PyVectorcall_Function", None)  # from 3.11 on
        if find is None:
            return self._ctypes.c_void_p.from_buffer(self._ctypes.pythonapi._PyFunction_Vectorcall).value
        find.argtypes, find.restype = [self._ctypes.py_object], self._ctypes.c_void_p
        found: int | None = find(function)
        return found


class Names:
    """The names of modules, by id()."""

    def __init__(self, new_hook: Callable[[bytes | None], Any]) -> None:
        self.known: dict[int, bytes] = {}
        self.backward: dict[bytes, bytes] = {}  # by name
        self.carriers: dict[bytes | None, Any] = {}  # tensors, by name
        self._hooks: dict[bytes | None, Any] = {}  # the same
        self._new_hook = new_hook  # makes a C function: Dynamo would compile one in Python
        self._texts: dict[bytes, bytes] = {}  # all names, never removed, because the library refers to them
        self._roots: set[int] = set()  # modules in `known` that were outermost
        self._refs: dict[int, Any] = {}
        self._outermost: set[bytes] = set()  # names of modules that were outermost: their class
        self._functions: set[bytes] = set()  # names of functions that aren't modules

    def find(self, module: Any, outer: bytes | None) -> bytes:
        """Choose a name for a module that has none yet. `outer` is the name of the enclosing module."""
        try:
            return self._add(module, outer.decode("utf-8", "replace") if outer else "")
        except Exception:  # the program's named_modules() raised it
            return self._encode(type(module).__name__)

    def find_site(self, site: Any, outer: bytes | None) -> bytes | None:
        """Return the name of the module that a place in compiled code belongs to, and store it in `site`. The code runs
        in the module `outer`.
        """
        name, note = outer or b"", b""
        if name.endswith(BACKWARD):
            name, note = name[: -len(BACKWARD)], BACKWARD
        if name in self._functions:
            name = b""
        path = site.path.encode()
        if path and name and name not in self._outermost:
            path = name + b"." + path
        text = path or name or site.root.encode("utf-8", "backslashreplace")
        found = self._keep_text(text + (BACKWARD if site.backward else note)) if text else None
        if found is not None:
            site[outer] = found
        return found

    def find_set_up(self, kind: bytes, outer: bytes | None) -> bytes:
        """Return the name of a kind of set-up for a module."""
        name = (outer or b"").partition(b" (")[0]
        return self._keep_text(b"(set-up: " + kind + (b" of " + name if name else b"") + b")")

    def add_function(self, name: str) -> bytes:
        """Return the name of the work of a function that isn't a module."""
        kept = self._encode(f"{name}()")
        self._functions.add(kept)
        return kept

    def make_carrier(self, torch: Any, name: bytes | None) -> Any:
        """Return a new tensor that carries the hook for nodes that belong to a module. The program's modes don't see
        that it's made.
        """
        with getattr(torch._C, "_DisableTorchDispatch", nullcontext)():
            made = torch.Tensor()
        made._backward_hooks = {0: self._find_hook(name)}
        return self.carriers.setdefault(name, made)

    def add_hook(self, node: Any, name: bytes | None) -> None:
        """Add the hook to a node without a tensor, which takes much longer."""
        node.register_prehook(self._find_hook(name))

    def _find_hook(self, name: bytes | None) -> Any:
        if name not in self._hooks:
            self._hooks[name] = self._new_hook(name)
        return self._hooks[name]

    def _add(self, module: Any, prefix: str) -> bytes:
        """Name a module and those below it."""
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
                if not below and not prefix:
                    self._outermost.add(self.known[id(one)])
        self._keep(module, own)
        self._roots.add(id(module))
        if not prefix:
            self._outermost.add(self.known[id(module)])
        return self.known[id(module)]

    def _encode(self, name: str) -> bytes:
        return self._keep_text(name.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0"))

    def _keep_text(self, text: bytes) -> bytes:
        kept = self._texts.setdefault(text, text)
        self.backward.setdefault(kept, kept + BACKWARD)
        return kept

    def _keep(self, module: Any, name: str) -> None:
        key = id(module)
        self._refs[key] = weakref.ref(module, partial(self._forget, key))  # raises TypeError if it can't
        self.known[key] = self._encode(name)
        self._roots.discard(key)

    def _forget(self, key: int, _: Any) -> None:
        self.known.pop(key, None)
        self._refs.pop(key, None)
        self._roots.discard(key)


def _make_finder(torch: Any, filename: str) -> Callable[[Any], Any]:
    """Return a function that reads a tensor's `grad_fn`, even if a subclass overrides it. Its code appears to be in
    `filename`, a file that Dynamo doesn't trace.
    """
    disabled, read = torch._C.DisableTorchFunction, torch.Tensor.grad_fn.__get__

    def find_node(tensor):  # type: ignore[no-untyped-def]
        with disabled():
            return read(tensor)

    find_node.__code__ = _move(find_node.__code__, filename)
    return find_node


def _imitate(function: Any, original: FunctionType) -> Any:
    """Return a function that looks like the original to torch.jit: it has the original's source, and the globals of its
    module.
    """
    made = FunctionType(function.__code__, original.__globals__, original.__name__, None, function.__closure__)
    return update_wrapper(made, original)


def _wrap_ranges(owner: Any, recorder: Recorder) -> None:
    """Record the ranges of torch.profiler.record_function that are outside of modules, such as an optimizer's step."""
    enter, leave = owner.__enter__, owner.__exit__

    def __enter__(self):  # type: ignore[no-untyped-def]
        name = str(self.name).rpartition("#")[2]  # Optimizer.step#AdamW.step
        vars(self)["_gpt_entered"] = recorder.enter_outside(name.encode("utf-8", "replace"))
        return enter(self)

    def __exit__(self, *error):  # type: ignore[no-untyped-def]
        try:
            return leave(self, *error)
        finally:
            if vars(self).pop("_gpt_entered", 0):
                recorder.leave()

    owner.__enter__, owner.__exit__ = _imitate(__enter__, enter), _imitate(__exit__, leave)


def _call_indirectly(original: FunctionType) -> Any:
    """Return a function that calls the original in a way that Python doesn't inline."""

    def call(*args, **kwargs):  # type: ignore[no-untyped-def]
        return original(*args, **kwargs)

    call.__code__ = _move(call.__code__, original.__code__.co_filename)
    return _imitate(call, original)


def iter_functions(module: Any) -> Iterator[tuple[str, Any, bytes | None]]:
    """Yield the functions of a Python module that have a range: the name, the function, and its kind of set-up."""
    kind, pattern = SET_UP.get(module.__name__) or (None, FUNCTIONS_OUTSIDE[module.__name__])
    found = [("", module)]
    found += [(f"{name}.", one) for name, one in vars(module).items() if isinstance(one, type)]
    for prefix, owner in found:
        if prefix and owner.__module__ != module.__name__:
            continue
        for name, one in [*vars(owner).items()]:
            if re.fullmatch(pattern, prefix + name):
                function = getattr(one, "__func__", one)
                if INLINES and isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
                    made = _call_indirectly(function)
                    setattr(owner, name, classmethod(made) if function is not one else made)
                while hasattr(function, "__wrapped__"):  # the inner one has the work of all its wrappers
                    function = function.__wrapped__
                yield name, function, kind


class Patcher:
    """An import hook: it patches modules of PyTorch right after they have run."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module with the other finders, and wrap its loader, so that the module is patched after it has run."""
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
    """Make the functions of a class appear to be in a file that Dynamo doesn't trace."""
    for function in vars(owner).values():
        if isinstance(function, FunctionType):
            function.__code__ = _move(function.__code__, filename)


def _move(code: CodeType, filename: str) -> CodeType:
    inner = tuple(_move(one, filename) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inner)


def _say(text: str) -> None:
    if sys.stderr:
        print(f"gpt.layers: warning: no modules are recorded: {text}", file=sys.stderr)


def install(load_file: Callable[[str, str], Any]) -> None:
    """If gpt-hook traces this process, arrange that PyTorch is patched when the program imports it. `load_file` loads a
    module from a file: it gets the module's name and the path.
    """
    if not os.environ.get("GPT_HOOK_OUTPUT"):
        return
    try:
        recorder = Recorder()
    except (AttributeError, ImportError, OSError):
        return
    names = Names(recorder.new_hook)
    wrapped: list[bool] = []
    waiting: list[ModuleType] = []  # torch.autograd, if it's imported before the modules
    early: list[ModuleType] = []  # the same for modules with functions to name

    def patch_modules(module: Any) -> None:
        _place(Names, module.__file__)
        torch = module.torch
        attributes = [sys.intern(name) for name in ("grad_fn", "_sequence_nr", "_register_hook_dict")]
        asked = torch._C.is_grad_enabled, getattr(torch._C, "_is_torch_function_mode_enabled", lambda: True)
        objects = (None, True, Exception, torch.Tensor, getattr(module, "Parameter", torch.Tensor), *attributes, *asked)
        finders = (_make_finder(torch, module.__file__), names.find, names.find_site)
        adders = (names.find_set_up, partial(names.make_carrier, torch), names.add_hook)
        kept = (names.known, names.backward, names.carriers, names.add_function("backward"))
        recorder.wrap(module.Module.__call__, (*objects, *finders, *adders, *kept))
        wrapped.append(True)
        for autograd in waiting:
            patch_autograd(autograd)
        for one in (module, *early):
            name_functions(one)

    def patch_autograd(module: Any) -> None:
        if not wrapped:
            waiting.append(module)
            return
        module._engine_run_backward = recorder.wrap_backward(module._engine_run_backward)
        name_functions(module)

    def patch_profiler(module: Any) -> None:
        _wrap_ranges(module.record_function, recorder)

    def patch_compiled_backward(module: Any) -> None:
        enable = module._enable

        @wraps(enable)
        def _enable(*args, **kwargs):  # type: ignore[no-untyped-def]
            recorder.stop_tagging()  # hooks of nodes would break the graph of a backward pass
            return enable(*args, **kwargs)

        module._enable = _enable

    def patch_inductor(module: Any) -> None:
        name_functions(module)
        for name, traced in (("compile_fx", False), ("_compile_fx_inner", True)):
            if hasattr(module, name):
                setattr(module, name, code().watch(getattr(module, name), traced))

    def patch_loading(module: Any) -> None:
        module.compile = code().compile

    @lru_cache(maxsize=None)
    def code() -> Any:
        """Return the object that finds modules in compiled code, and create the Python module that such code
        imports.
        """
        made = load_file("_gpt_layers_compiled", os.path.join(os.path.dirname(__file__), "compiled.py")).CompiledCode()
        shared = ModuleType("_gpt_layers")
        shared._gpt_region, shared._gpt_sites = recorder.new_region(), made.sites  # type: ignore[attr-defined]
        sys.modules["_gpt_layers"] = shared
        return made

    def name_functions(module: Any) -> None:
        if not wrapped:
            early.append(module)
        elif module.__name__ == "torch.cuda":
            recorder.name_calls(module._lazy_init, None, None)
        else:
            for name, function, kind in iter_functions(module):
                recorder.name_calls(function, None if kind else names.add_function(name), kind)

    patches: dict[str, Callable[[Any], None]] = {
        **dict.fromkeys((*SET_UP, *FUNCTIONS_OUTSIDE, "torch.cuda"), name_functions),
        "torch.nn.modules.module": patch_modules,
        "torch.autograd": patch_autograd,
        "torch.autograd.profiler": patch_profiler,
        "torch._dynamo.compiled_autograd": patch_compiled_backward,
        "torch._inductor.compile_fx": patch_inductor,
        "torch._inductor.runtime.compile_tasks": patch_loading,
    }
    sys.meta_path.insert(0, Patcher(patches))
