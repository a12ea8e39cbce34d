"""Recognize tensors on the device by their methods instead of their type, and find their memory.

A reader gets a tensor, and returns facts about it, or None if it isn't on the device, is empty, or has no memory. It
calls as few functions of the tensor's library as possible, with PyTorch's function modes turned off, and never starts
work or waits.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence


class TensorFacts(NamedTuple):
    """The memory of a tensor. `low` is the lowest address, and `size` is the number of bytes to the end of the highest
    element.

    `first` is the address of the first element, which isn't the lowest one if a stride is negative. `dtype` is the type
    of the elements.
    """

    low: int
    size: int
    first: int
    dtype: str
    shape: tuple[int, ...]


Reader = Callable[[Any], Optional[TensorFacts]]
Pointer = Callable[[Any], int]

ADDRESSES = 1 << 64
MOST_DIMENSIONS = 64
ON_DEVICE = (2, 13)  # from DLDeviceType: kDLCUDA, kDLCUDAManaged
KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}  # in the array interface
CODES = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")  # DLDataTypeCode


def find_reader(type_: type) -> Reader | None:
    """Return the reader for values of a type, or None if they aren't tensors."""
    if type_ is type or _is_wrapper(type_):
        return None
    names = {name for base in type_.__mro__ if base is not object for name in base.__dict__}
    for name, reader in (("data_ptr", _read_pointer), ("__cuda_array_interface__", _read_interface)):
        if name in names:
            return reader
    return _read_dlpack if names >= {"__dlpack__", "__dlpack_device__"} else None


def find_pointer(type_: type) -> Pointer | None:
    """Return a function that returns the current address of such a value, or None if the address can't change.

    For PyTorch, it's an internal function instead of the method `data_ptr`: modes and subclasses can't intercept it,
    and it doesn't make copy-on-write tensors copy their data.
    """
    if find_reader(type_) is not _read_pointer:
        return None
    if any((base.__module__, base.__name__) == ("torch", "Tensor") for base in type_.__mro__):
        pointer: Pointer | None = _core("_data_address")
        return pointer
    return lambda value: int(value.data_ptr())


def is_module(type_: type) -> bool:
    """Return whether a type is a PyTorch module."""
    return any(base.__name__ == "Module" and base.__module__ == "torch.nn.modules.module" for base in type_.__mro__)


def iter_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a module, but not of nested modules."""
    inside = object.__getattribute__(module, "__dict__")
    for part in ("_parameters", "_buffers"):
        yield from list((inside.get(part) or {}).items())


def _is_wrapper(type_: type) -> bool:
    """Return whether a PyTorch tensor has no memory of its own: it's fake, functional or distributed."""
    for base in type_.__mro__:
        if base.__module__ == "torch" and base.__name__ == "Tensor":
            return False
        if "__torch_dispatch__" in base.__dict__:
            return True
    return False


def _facts(
    first: int, item: int, dtype: str, shape: Iterable[Any], strides: Sequence[int] | None
) -> TensorFacts | None:
    """Return facts about a tensor, or None if they make no sense. `strides` are in bytes; None stands for C order."""
    sizes = tuple(int(size) for size in shape)
    if not first or item <= 0 or min(sizes, default=1) <= 0 or len(sizes) > MOST_DIMENSIONS:
        return None
    if strides is None:
        low, high = 0, item
        for size in sizes:
            high *= size
    elif len(strides) != len(sizes):
        return None
    else:
        reach = [(size - 1) * int(stride) for size, stride in zip(sizes, strides)]
        low, high = sum(min(0, far) for far in reach), sum(max(0, far) for far in reach) + item
    if first + low < 0 or first + high > ADDRESSES or max(sizes, default=0) >= ADDRESSES:
        return None
    return TensorFacts(first + low, high - low, first, dtype, sizes)


def _read_pointer(value: Any) -> TensorFacts | None:
    with _without_modes():
        try:
            if getattr(value, "is_cuda", True) is False or _is_traced():
                return None
            item = _call(value, "element_size") or _call(value, "itemsize") or value.dtype.itemsize
            strides = _call(value, "stride")
            steps = [int(stride) * int(item) for stride in strides] if strides is not None else None
            dtype = str(value.dtype)
            dtype = dtype[len("torch.") :] if dtype.startswith("torch.") else dtype
            return _facts(_address(value, int(item)), int(item), dtype, value.shape, steps)
        except Exception:  # without memory: sparse, batched, freed
            return None


def _call(value: Any, name: str) -> Any:
    found = getattr(value, name, None)
    return found() if callable(found) else found


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    """Turn off PyTorch's modes, which would notice that we use a tensor. If there's a tensor of PyTorch, PyTorch has
    been imported.
    """
    quiet = _core("DisableTorchFunction")
    return quiet() if quiet else contextlib.nullcontext()


def _core(name: str) -> Any:
    """Return a member of PyTorch's C module, or None if PyTorch hasn't been imported or doesn't have it."""
    return getattr(getattr(sys.modules.get("torch"), "_C", None), name, None)


def _is_traced() -> bool:
    """Return whether PyTorch's tracer is recording, because it would record that we read a shape."""
    tracing = _core("_get_tracing_state")
    return bool(tracing and tracing() is not None)


def _address(value: Any, item: int) -> int:
    """Return the address of the first element. Don't ask PyTorch for the address of a lazy clone, which would make the
    copy.
    """
    is_lazy, begin = _core("_is_cow_tensor"), _core("_data_address")
    if is_lazy and begin and isinstance(value, sys.modules["torch"].Tensor) and is_lazy(value):
        return int(begin(value)) + int(value.storage_offset()) * item
    return int(value.data_ptr())


def _read_interface(value: Any) -> TensorFacts | None:
    try:
        told = value.__cuda_array_interface__
        kind, item = told["typestr"][1], int(told["typestr"][2:])
        dtype = f"{KINDS[kind]}{8 * item}" if kind in KINDS and kind != "b" else KINDS.get(kind, told["typestr"])
        return _facts(int(told["data"][0] or 0), item, dtype, told["shape"], told.get("strides"))
    except Exception:  # it's on the host, for example
        return None


def _read_dlpack(value: Any) -> TensorFacts | None:
    try:
        if value.__dlpack_device__()[0] not in ON_DEVICE:
            return None
        return _read_capsule(value.__dlpack__(stream=-1))  # -1: don't synchronize
    except Exception:  # it can't be exported
        return None


def _read_capsule(capsule: Any) -> TensorFacts | None:
    """Read a DLTensor. Its capsule is dropped without being consumed."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_uint64), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("offset", ctypes.c_uint64),
        )  # fmt: skip

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    tensor = Tensor.from_address(get(capsule, b"dltensor"))
    bits = tensor.bits * tensor.lanes
    name = CODES[tensor.code] if tensor.code < len(CODES) else f"type{tensor.code}."
    dtype = name if name == "bool" else f"{name}{tensor.bits}" + (f"x{tensor.lanes}" if tensor.lanes > 1 else "")
    item = (bits + 7) // 8
    strides = [item * stride for stride in tensor.strides[: tensor.ndim]] if tensor.strides else None
    return _facts((tensor.data or 0) + tensor.offset, item, dtype, tensor.shape[: tensor.ndim], strides)
