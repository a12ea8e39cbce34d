"""Makes records.h, with which C writes the records that gpt/stream/records.py declares, with the table of reasons
and the names of closed libraries.

`python runtime/mkrecords.py > runtime/abi/records.h`; `make` does it. A struct for each kind, and a function that
packs one: straight code, so that the compiler checks the types and folds the names of the keys.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt.formats import closed
from gpt.stream import reasons, records

# type -> its C type, and if it is optional what shows that it is there; a type without C form is a KeyError
SCALARS = {
    "u64": "uint64_t",
    "u32": "uint64_t",  # on the wire they are alike
    "bool": "bool",
    "str": "struct gpt_str",
    "bin": "struct gpt_bin",
    "u64?": "struct gpt_u64",
    "u32?": "struct gpt_u64",
    "str?": "struct gpt_str",
    "bin?": "struct gpt_bin",
}
PRESENT = {"u64?": "{}.present", "u32?": "{}.present", "str?": "{}.data", "bin?": "{}.data"}
PUT = {
    "u64": "gpt_put_u64(buffer, {});",
    "u32": "gpt_put_u64(buffer, {});",
    "bool": "gpt_put_bool(buffer, {});",
    "str": "gpt_put_str(buffer, {0}.data, {0}.size);",
    "bin": "gpt_put_bin(buffer, {0}.data, {0}.size);",
    "u64?": "gpt_put_u64(buffer, {}.value);",
    "u32?": "gpt_put_u64(buffer, {}.value);",
    "str?": "gpt_put_str(buffer, {0}.data, {0}.size);",
    "bin?": "gpt_put_bin(buffer, {0}.data, {0}.size);",
}

PRELUDE = """\
// The record kinds of a GPT stream as C writes them; gpt-stream(5) says what they mean.
// Made by runtime/mkrecords.py from gpt/stream/records.py: change that one.
//
// gpt_pack_KIND appends one record and returns its size. A record that does not fit, or is larger than a
// record may be, returns 0 and leaves `at` where it was; the bytes after it may have been overwritten. What a
// designated initializer leaves out is absent if it is optional, and 0 or empty if it is not.
// Nothing here allocates, locks or sets errno: a signal handler may call it.

#ifndef GPT_RECORDS_H
#define GPT_RECORDS_H

#include "msgpack.h"

// clang-format off

#define GPT_VERSION "{major}.{minor}"
#define GPT_MAX_RECORD ((size_t){max_record})

struct gpt_str {{ const char *data; size_t size; }};   // UTF-8; optional: absent if data is NULL
struct gpt_bin {{ const void *data; size_t size; }};   // the same
struct gpt_u64 {{ bool present; uint64_t value; }};    // where it is optional

#define GPT_STR(literal) ((struct gpt_str){{(literal), sizeof(literal) - 1}})
#define GPT_U64(number) ((struct gpt_u64){{true, (number)}})

// Ends a record that began at `start`.
static inline size_t gpt_finish(struct gpt_packer *buffer, unsigned char *start) {{
    size_t size = (size_t)(buffer->at - start);
    if (buffer->full || size > GPT_MAX_RECORD) {{
        buffer->at = start;
        buffer->full = false;
        return 0;
    }}
    return size;
}}
"""


def declare(name: str, keys: records.Keys) -> Iterator[str]:
    """Yield the struct of a kind or of a nested map."""
    yield f"struct gpt_{name} {{"
    for key, (type_, meaning) in keys.items():
        optional = "optional: " if type_.endswith("?") else ""
        yield f"    {c_type(type_, key)} // {optional}{meaning}"
    yield "};"


def c_type(type_: str, key: str) -> str:
    """Return the declaration of a member."""
    if type_.startswith("["):
        return f"struct {{ const {c_type(type_.rstrip('?')[1:-1], '*items')} size_t count; }} {key};"
    base = f"struct gpt_{type_}" if type_ in records.STRUCTS else SCALARS[type_]
    return f"{base} {key};"


def present(type_: str) -> str:
    """Return an expression that's true if a member is present."""
    return "{}.items" if type_.startswith("[") else PRESENT[type_]


def put_map(keys: records.Keys, fixed: int) -> Iterator[str]:
    """Yield the statements that begin the map of `record`: its keys and `fixed` more."""
    needed = fixed + sum(not type_.endswith("?") for type_, _ in keys.values())
    terms = [f"!!{present(t).format(f'record->{key}')}" for key, (t, _) in keys.items() if t.endswith("?")]
    yield f"gpt_put_map(buffer, {' + '.join([str(needed), *terms])});"


def put_keys(keys: records.Keys) -> Iterator[str]:
    """Statements that write the keys of `record` with their values."""
    for key, (type_, _) in keys.items():
        member = f"record->{key}"
        lines = [put_text(key), *put(type_ if type_ in PUT else type_.rstrip("?"), member)]
        if type_.endswith("?"):
            yield f"if ({present(type_).format(member)}) {{"
            yield from (f"    {line}" for line in lines)
            yield "}"
        else:
            yield from lines


def put(type_: str, value: str) -> Iterator[str]:
    """Statements that write one value."""
    if type_.startswith("["):
        yield f"gpt_put_array(buffer, {value}.count);"
        yield f"for (size_t i = 0; i < {value}.count; i++)"
        yield from (f"    {line}" for line in put(type_[1:-1], f"{value}.items[i]"))
    elif type_ in records.STRUCTS:
        yield f"gpt_put_{type_}(buffer, &{value});"
    else:
        yield PUT[type_].format(value)


def put_text(text: str) -> str:
    """Return a statement that writes a text known at build time; all of them are short."""
    assert len(text) < 32
    return f'gpt_put_raw(buffer, "\\x{0xA0 | len(text):x}" "{text}", {1 + len(text)});'


def define(signature: str, body: Iterator[str]) -> Iterator[str]:
    """A function."""
    yield f"static inline {signature} {{"
    yield from (f"    {line}" for line in body)
    yield "}"


def pack(kind: str, keys: records.Keys) -> Iterator[str]:
    """The body of the function that packs a kind."""
    yield "unsigned char *start = buffer->at;"
    yield from put_map(keys, fixed=1)
    yield put_text("kind")
    yield put_text(kind)
    yield from put_keys(keys)
    yield "return gpt_finish(buffer, start);"


def quoted(text: str) -> str:
    """A C string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def reason_table() -> Iterator[str]:
    """The reasons of gpt/stream/reasons.py, for an X macro."""
    yield "// X(code, text, advice) for each reason: why a launch has no probes, or a buffer no data"
    rows = (f"X({code}, {quoted(text)}, {quoted(advice)})" for code, (text, advice) in reasons.TABLE.items())
    yield "#define GPT_REASONS(X) \\"
    yield " \\\n".join(f"    {row}" for row in rows)
    yield ""


def closed_files() -> Iterator[str]:
    """Return the beginnings of closed libraries' names, as items of an array."""
    yield "// How the names of NVIDIA's closed libraries begin, from gpt/formats/closed.txt"
    yield "#define GPT_CLOSED_FILES \\"
    yield ", \\\n".join(f"    {quoted(name)}" for name in closed.read_table()["file"])
    yield ""


def header() -> Iterator[str]:
    """The lines of records.h."""
    major, minor = records.VERSION
    yield PRELUDE.format(major=major, minor=minor, max_record=records.MAX_RECORD)
    for name, keys in records.STRUCTS.items():
        yield from declare(name, keys)
        yield ""
        body = (line for part in (put_map(keys, fixed=0), put_keys(keys)) for line in part)
        yield from define(f"void gpt_put_{name}(struct gpt_packer *buffer, const struct gpt_{name} *record)", body)
        yield ""
    for kind, keys in records.KINDS.items():
        yield from declare(kind, keys)
        yield ""
        signature = f"size_t gpt_pack_{kind}(struct gpt_packer *buffer, const struct gpt_{kind} *record)"
        yield from define(signature, pack(kind, keys))
        yield ""
    yield from reason_table()
    yield from closed_files()
    yield "#endif"


if __name__ == "__main__":
    print("\n".join(header()))
