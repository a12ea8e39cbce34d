"""Read the names that XLA, and so JAX, gives to its NVTX ranges.

A range around each piece of work names the operations in it:
`Thunk:#name=jit(step)/transpose(jvp(layer0))/mlp/bf,fd->bd/dot_general,hlo_op=fusion.3,unique_hlo_op_id=4#`. Between
the function and the operation are the scopes of jax.named_scope or Flax, and `transpose` marks a backward pass. So this
work belongs to `layer0.mlp (backward)`.
"""

from __future__ import annotations

import re
from functools import cache

XLA = "TSL"  # the domain of its ranges
BACKWARD = " (backward)"
THUNK, END = "Thunk:#name=", ",hlo_op="
MODULE = re.compile(r"XlaModule:#hlo_module=([^,#]+?)(?:\.\d+)?[,#]")
FUNCTION = re.compile(r"p?jit\(")
WRAPPED = re.compile(r"(?:jvp|transpose|vmap|remat|checkpoint|shard_map)\((.*)\)")
# What the last part of a name is, if it's an operation of JAX and no scope.
OPERATION = re.compile(
    "abs|add|and|arg(max|min)|broadcast_in_dim|ceil|clamp|concatenate|conv_general_dilated|convert_element_type|copy|cos|"
    "cumsum|custom_[jv][jv]p_call|div|dot_general|dynamic(_update)?_slice|eq|erf|exp|expand_dims|floor|gather|ge|gt|"
    "integer_pow|iota|is_finite|le|log|log1p|logistic|lt|max|min|mul|ne|neg|not|or|pad|pow|reduce_[a-z]+|rem|reshape|rev|"
    "round|rsqrt|scatter(-add)?|select(_and_scatter_add|_n)|sign|sin|slice|sort|sqrt|square|squeeze|stop_gradient|sub|"
    "tanh|top_k|transpose|while|xor"
)


@cache
def name_scope(text: str) -> str | None:
    """Return the scope that a range belongs to, with dots between its parts, the name of its module (a compiled
    function) if it has no scope, or None if neither is in the text.
    """
    if found := MODULE.match(text):
        return found[1]
    end = text.find(END)
    if not text.startswith(THUNK) or end < 0:
        return None
    parts, backward = [], False
    first, *_ = text[len(THUNK) : end].split(";", 1)  # the first of several operations
    for part in _split(first):
        backward |= part.startswith("transpose(")
        while inner := WRAPPED.fullmatch(part):
            part = inner[1]
        if part and "->" not in part and not FUNCTION.match(part):
            parts += _split(part)
    if parts and OPERATION.fullmatch(parts[-1]):
        del parts[-1]
    return ".".join(parts) + BACKWARD * backward if parts else None


def _split(text: str) -> list[str]:
    """Split a name at slashes that are outside of brackets."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
    return [*found, text[begin:]]
