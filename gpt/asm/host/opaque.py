"""Check declarations of textures, samplers and surfaces as ptxas does.

The simulated device has none of these: a kernel that uses one is rejected. But a module may declare textures that none
of its kernels uses. ptxas rejects some declarations, and the tables here list what it accepts (ptxas 13.0, whose manual
lists more field names and no combinations).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpt.asm.host.names import Unsupported
from gpt.ptx import tree
from gpt.ptx.types import integer

OPAQUE = {".texref", ".samplerref", ".surfref"}
_NAMES = {"linear", "nearest", "wrap", "mirror", "clamp_ogl", "clamp_to_edge", "clamp_to_border"}
_IMAGE = {"width", "height", "depth", "channel_data_type", "channel_order", "array_size"}
_SAMPLING = {"filter_mode", "addr_mode_0", "addr_mode_1", "addr_mode_2"}
_FIELDS = {
    ".texref": {*_IMAGE, *_SAMPLING, "normalized_coords", "num_mipmap_levels", "num_samples"},
    ".samplerref": {*_SAMPLING, "force_unnormalized_coords"},
    ".surfref": _IMAGE,
}


def check_opaque(specifiers: Iterable[tree.Specifier], declarator: tree.Declarator, independent: bool) -> None:
    """Raise Unsupported for everything that ptxas rejects. `independent` says whether the module has
    texmode_independent.
    """
    words = {specifier.word for specifier in specifiers}
    (type_,) = words & OPAQUE
    name, what = declarator.name, f"{type_} '{declarator.name}'"
    if ".global" not in words:
        raise Unsupported(f"{what} outside of .global memory")
    if ".common" in words or any(word[:2] == ".v" and word[2:].isdecimal() for word in words):
        raise Unsupported(f"{what} as '.common' or as a vector")
    if type_ == ".samplerref" and not (independent or declarator.dimensions):
        raise Unsupported(f"{what} without 'texmode_independent' in .target")
    if None in declarator.dimensions and declarator.value is None and ".extern" not in words:
        raise Unsupported(f"array '{name}' without a size: only .extern arrays have none")
    if declarator.value is not None:
        _check_value(what, declarator.value, _FIELDS[type_])


def _check_value(what: str, value: tree.Operand, fields: set[str]) -> None:
    """Raise Unsupported for initial values other than settings in braces, such as `{ filter_mode = linear }`."""
    if not isinstance(value, tree.Vector):
        raise Unsupported(f"{what} with the initial value '{value}': it has named fields in braces")
    for item in value.items:
        if isinstance(item, tree.Vector):
            _check_value(what, item, fields)
            continue
        if not isinstance(item, tree.Setting) or str(item.key) not in fields:
            raise Unsupported(f"{what} with the initial value '{item}': its fields are {', '.join(sorted(fields))}")
        if str(item.value) not in _NAMES and integer(str(item.value)) is None:
            raise Unsupported(f"{what} with '{item}': neither a number nor a mode")
