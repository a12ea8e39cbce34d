"""Write the code for a SAVE to a table: each lane finds the slot of its key, or claims a free one, and adds its values
with atomics.

The table has several copies, and the number of an SM selects its copy, so that SMs rarely contend. Readers
merge the copies.

A slot stores each 32 bits of its key in a 64-bit word, with 1 in the upper half. A word that's zero is free, and a
single atomic claims it for any key. Lanes claim the words of a slot in order. If a lane finds another key in a word, it
continues with the next slot. A word never changes once it has been claimed, so all lanes with the same key visit the
same slots and end up in the same one. If two keys begin with the same word, the slot goes to the first lane that claims
the second word.

A key is given up only after every slot has been tried, so none is dropped unless there are more keys than slots. All
branches are uniform, so the lanes of a warp leave the loop together.
"""

from __future__ import annotations

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.lower.total import combine, ordered, widened
from gpt.probe.plan.maps import PlacedMap

FACTORS = ("0x9E3779B1", "0x85EBCA77", "0xC2B2AE3D", "0x27D4EB2F")  # odd; one per 32 bits of a key


def add_to_slot(
    code: Emitter,
    placed: PlacedMap,
    base: str,
    values: list[str],
    widths: list[int],
    condition: Condition | None,
    label: str,
) -> None:
    """Add values to the slot of their key if the condition holds. A value may be narrower than its field. `label` must
    be unique.
    """
    copy = code.once("b32", "and.b32", code.special("%smid"), (placed.copies or 1) - 1)
    unit = code.make("b64", "mad.wide.u32", copy, placed.unit_size, base)
    if placed.counted:
        code.put(f"red.global.add.u64 [{unit}], 1", condition)
        return
    fields = placed.map.fields
    rows = [ordered(code, *row) for row in zip(fields, values, widths, strict=True)]
    parts = [part for row in rows if row[0].op == "key" for part in _halves(code, *row[1:], row[0].size)]
    added = widened(code, [row for row in rows if row[0].op != "key"])
    words = [code.make("b64", "mov.b64", f"{{{part}, {code.once('b32', 'mov.b32', 1)}}}") for part in parts]
    here = code.once("b32", "activemask.b32")
    index = code.make("b32", "mul.hi.u32", _hash(code, parts), placed.capacity)
    left = code.make("b32", "mov.b32", placed.capacity)
    wanted = code.make("b32", "selp.b32", 1, 0, code.positive(condition))  # 1 until the slot is found
    pending = code.new("pred")

    code.lines.append(f"{label}:")
    code.put(f"setp.ne.u32 {pending}, {wanted}, 0")
    slot = code.make("b64", "mad.wide.u32", index, placed.stride, unit)
    same = pending
    for number, word in enumerate(words):
        place = f"[{slot}+{placed.head + 8 + 8 * number}]"
        found = code.make("b64", "ld.global.u64", place)
        free = code.make("pred", "setp.eq.and.u64", found, 0, same)
        code.put(f"atom.global.cas.b64 {found}, {place}, 0, {word}", Condition(free))
        code.put(f"selp.b64 {found}, {word}, {found}, {code.make('pred', 'setp.eq.and.u64', found, 0, free)}")
        same = code.make("pred", "setp.eq.and.u64", found, word, same)
    code.put(f"red.global.add.u64 [{slot}+{placed.head}], 1", Condition(same))
    for field, register in added:
        combine(code, field, f"[{slot}+{placed.head + field.offset}]", register, Condition(same))
    code.put(f"selp.b32 {wanted}, 0, {wanted}, {same}")
    code.put(f"add.u32 {index}, {index}, 1")
    code.put(f"selp.b32 {index}, 0, {index}, {code.make('pred', 'setp.eq.u32', index, placed.capacity)}")
    code.put(f"sub.u32 {left}, {left}, 1")
    pending_still = code.make("pred", "setp.ne.u32", wanted, 0)
    goes_on = code.make("pred", "setp.ne.and.u32", left, 0, pending_still)
    anyone = code.make("pred", "vote.sync.any.pred", goes_on, here)
    code.jump(label, Condition(anyone))

    code.put(f"red.global.add.u64 [{unit}], 1", Condition(pending_still))


def _halves(code: Emitter, value: str, width: int, size: int) -> list[str]:
    """Return the 32-bit words of a field in the key, lower half first."""
    if width == 8:
        return code.halves(value)
    return [value, code.once("b32", "mov.b32", 0)] if size == 8 else [value]


def _hash(code: Emitter, parts: list[str]) -> str:
    """Hash the words of a key to 32 bits. The upper bits of the result depend on the whole key."""
    mixed = ""
    for part, factor in zip(parts, FACTORS, strict=False):
        value = code.make("b32", "xor.b32", part, code.make("b32", "shr.u32", mixed, 15)) if mixed else part
        product = code.make("b32", "mul.lo.u32", value, factor)
        mixed = code.make("b32", "xor.b32", product, mixed) if mixed else product
    return mixed
