"""What is a tensor on the device, and where it is: by what it can do, not by its type.

A reader takes a tensor and returns what it says of itself, or None if that is not on the device, is empty, or has no
memory. It calls as little of the tensor's library as it can, with PyTorch's function modes turned off: none of it
starts work or waits for any.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence


class TensorFacts(NamedTuple):
    """Where a tensor is. `low` is the address of its lowest byte, `size` how many there are to the end of the highest,
    `first` where its first element is, which is not the lowest with a negative stride. `dtype` is one element's."""

    low: int
    size: int
    first: int
    dtype: str
    shape: tuple[int, ...]


Reader = Callable[[Any], Optional[TensorFacts]]
Pointer = Callable[[Any], int]

ADDRESSES = 1 << 64
MOST_DIMENSIONS = 64
ON_DEVICE = (2, 13)  # of DLDeviceType: kDLCUDA, kDLCUDAManaged
KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}  # of the array interface
CODES = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")  # DLDataTypeCode


def find_reader(type_: type) -> Reader | None:
    """How to read values of a type; None if they are not tensors."""
    if type_ is type or _is_wrapper(type_):
        return None
    names = {name for base in type_.__mro__ if base is not object for name in base.__dict__}
    for name, reader in (("data_ptr", _read_pointer), ("__cuda_array_interface__", _read_interface)):
        if name in names:
            return reader
    return _read_dlpack if names >= {"__dlpack__", "__dlpack_device__"} else None


def find_pointer(type_: type) -> Pointer | None:
    """How to ask a value of a type again where its memory begins; None if that does not change.

    PyTorch's own function, not a method: neither a mode nor a subclass sees it, and it copies nothing.
    """
    if find_reader(type_) is not _read_pointer:
        return None
    if any((base.__module__, base.__name__) == ("torch", "Tensor") for base in type_.__mro__):
        pointer: Pointer | None = _core("_data_address")
        return pointer
    return lambda value: int(value.data_ptr())


def is_module(type_: type) -> bool:
    """Whether it is a module of PyTorch."""
    return any(base.__name__ == "Module" and base.__module__ == "torch.nn.modules.module" for base in type_.__mro__)


def iter_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """The parameters and buffers of a module, without those of the modules in it."""
    inside = object.__getattribute__(module, "__dict__")
    for part in ("_parameters", "_buffers"):
        yield from list((inside.get(part) or {}).items())


def _is_wrapper(type_: type) -> bool:
    """A tensor of PyTorch that has no memory of its own: fake, functional, distributed."""
    for base in type_.__mro__:
        if base.__module__ == "torch" and base.__name__ == "Tensor":
            return False
        if "__torch_dispatch__" in base.__dict__:
            return True
    return False


def _facts(
    first: int, item: int, dtype: str, shape: Iterable[Any], strides: Sequence[int] | None
) -> TensorFacts | None:
    """`strides` are in bytes; None: C order."""
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
        except Exception:  # it has no memory: sparse, batched, freed
            return None


def _call(value: Any, name: str) -> Any:
    found = getattr(value, name, None)
    return found() if callable(found) else found


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    """PyTorch's modes see each use of a tensor, this one too. It is imported if one of its tensors is here."""
    quiet = _core("DisableTorchFunction")
    return quiet() if quiet else contextlib.nullcontext()


def _core(name: str) -> Any:
    """What PyTorch has below its Python, if it is imported and has it."""
    return getattr(getattr(sys.modules.get("torch"), "_C", None), name, None)


def _is_traced() -> bool:
    """Whether PyTorch's tracer notes who asks for a shape."""
    tracing = _core("_get_tracing_state")
    return bool(tracing and tracing() is not None)


def _address(value: Any, item: int) -> int:
    """Of the first element. To ask a lazy clone of PyTorch for it would make the copy."""
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
    except Exception:  # it is on the host, say
        return None


def _read_dlpack(value: Any) -> TensorFacts | None:
    try:
        if value.__dlpack_device__()[0] not in ON_DEVICE:
            return None
        return _read_capsule(value.__dlpack__(stream=-1))  # -1: nothing is waited for
    except Exception:  # it cannot be exported
        return None


def _read_capsule(capsule: Any) -> TensorFacts | None:
    """A DLTensor; its capsule is given back unused."""
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
