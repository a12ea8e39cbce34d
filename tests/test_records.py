"""The declared record kinds: C (runtime/abi/records.h) and Python write the same bytes for the same record."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import msgpack
import pytest

from gpt.stream import records, wire
from tests import cuda
from tests.tiers import FULL

RUNTIME = Path(__file__).parents[1] / "runtime"

NUMBERS = [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]
SIZES = [0, 1, 31, 32, 255, 256, 65535, 65536]
COUNTS = [0, 1, 2, 15, 16, 17]
TEXT = bytes(ord("a") + i % 23 for i in range(70000))
BYTES = bytes(i * 7 % 251 for i in range(70000))

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "records.h"

static char text[70000];
static unsigned char bytes[70000];
static const struct gpt_symbol unnamed[65536];
static unsigned char out[128 << 20];

#define STR(at, size) {text + at, size}
#define BIN(at, size) {bytes + at, size}
#define ARRAY(type, count, ...) {(const type[]){__VA_ARGS__}, count}

// Writes a record, and tries it in less room than it needs: then nothing may be written after the end.
#define SAMPLE(kind, ...) do { \\
    struct gpt_##kind record = {__VA_ARGS__}; \\
    unsigned char *before = buffer.at; \\
    size_t size = gpt_pack_##kind(&buffer, &record); \\
    if (!size || size != (size_t)(buffer.at - before)) abort(); \\
    for (size_t room = 0; room < size && room < 200; room++) { \\
        memset(buffer.at, 0xee, 256); \\
        struct gpt_packer small = {buffer.at, buffer.at + room, false}; \\
        if (gpt_pack_##kind(&small, &record) || small.at != buffer.at || small.full) abort(); \\
        for (size_t i = room; i < 256; i++) \\
            if (buffer.at[i] != 0xee) abort(); \\
    } \\
    buffer.at = before; \\
    if (fwrite(before, 1, size, stdout) != size) abort(); \\
} while (0)

int main(void) {
    struct gpt_packer buffer = {out, out + sizeof(out), false};
    for (int i = 0; i < 70000; i++) {
        text[i] = 'a' + i % 23;
        bytes[i] = i * 7 % 251;
    }
    if (sizeof(GPT_VERSION) < 4) abort();
    @SAMPLES@
    struct gpt_sync sync = {1};
    struct gpt_ptx large = {.data = {out, GPT_MAX_RECORD}};
    unsigned char *before = buffer.at;
    if (gpt_pack_ptx(&buffer, &large) || buffer.at != before) abort();
    if (!gpt_pack_sync(&buffer, &sync)) abort(); // the buffer is as good as before
    return fflush(stdout);
}
"""

turn = count()


def value_of(type_):
    """Return the next value worth testing for a type, as a Python value and as a C initializer."""
    number = next(turn)
    if type_.startswith("["):
        type_ = type_.rstrip("?")
        pairs = [value_of(type_[1:-1]) for _ in range(COUNTS[number % len(COUNTS)])]
        c_type = "uint64_t" if type_ in ("[u64]", "[u32]") else f"struct gpt_{type_[1:-1]}"
        return [p for p, _ in pairs], f"ARRAY({c_type}, {len(pairs)}, {', '.join(c for _, c in pairs)})"
    if type_ in records.STRUCTS:
        python, c = values_of(records.STRUCTS[type_], optional=bool(number % 2))
        return python, f"{{{c}}}"
    if type_.startswith("u"):
        value = NUMBERS[number % len(NUMBERS)] % (1 << int(type_[1:3]))
        return value, f"GPT_U64({value}u)" if type_.endswith("?") else f"{value}u"
    at, size = number % 1000, SIZES[number % len(SIZES)]
    if type_.startswith("str"):
        return TEXT[at : at + size].decode(), f"STR({at}, {size})"
    if type_ == "bool":
        return bool(number % 2), "true" if number % 2 else "false"
    assert type_.startswith("bin")
    return BYTES[at : at + size], f"BIN({at}, {size})"


def values_of(keys, optional):
    values, initializers = {}, []
    for key, (type_, _) in keys.items():
        if optional or not type_.endswith("?"):
            values[key], c = value_of(type_)
            initializers.append(f".{key} = {c}")
    return values, ", ".join(initializers)


def samples():
    """Yield records of every kind, each with the C statement that packs it."""
    for kind, keys in records.KINDS.items():
        for number in range(2 * len(NUMBERS) if FULL else 6):
            values, c = values_of(keys, optional=bool(number % 2))
            yield records.make(kind, **values), f"SAMPLE({kind}, {c});"
    yield records.make("diag", level="", where="", text="", ref=""), 'SAMPLE(diag, .ref = GPT_STR(""));'
    yield records.make("child", pid=0, how="\udcff"), 'SAMPLE(child, .how = GPT_STR("\\xff"));'
    needed = {key: type_ for key, (type_, _) in records.KINDS["element"].items() if not type_.endswith("?")}
    element = {key: 0 if type_ in ("u64", "u32") else "" for key, type_ in needed.items()}
    element |= {"kernels": [{"name": ""}] * 65536, "functions": [{"name": ""}] * 65535}
    yield (
        records.make("element", **element),
        "SAMPLE(element, .kernels = {unnamed, 65536}, .functions = {unnamed, 65535});",
    )


def test_c_and_python_write_the_same_bytes(tmp_path):
    pairs = list(samples())
    with open(tmp_path / "records.h", "w") as file:
        subprocess.run([sys.executable, RUNTIME / "mkrecords.py"], stdout=file, check=True)
    (tmp_path / "pack.c").write_text(PROGRAM.replace("@SAMPLES@", "\n    ".join(c for _, c in pairs)))
    cuda.c_compiler("-std=gnu11", "-O0", f"-I{tmp_path}", f"-I{RUNTIME}", tmp_path / "pack.c", "-o", tmp_path / "pack")
    written = subprocess.run([tmp_path / "pack"], stdout=subprocess.PIPE, check=True).stdout
    at = 0
    for record, statement in pairs:
        expected = wire.pack(record)
        assert written[at : at + len(expected)] == expected, statement[:1000]
        assert msgpack.unpackb(expected, unicode_errors="surrogateescape") == record
        at += len(expected)
    assert at == len(written)


def test_samples_cover_every_key_and_width():
    found, kinds = set(), {}
    for record, _ in samples():
        found |= {v if isinstance(v, int) else len(v) for v in record.values()}
        kinds.setdefault(record["kind"], set()).add(frozenset(record))
    assert found >= {*NUMBERS, *SIZES, *COUNTS}
    assert {kind: frozenset().union(*keys) for kind, keys in kinds.items()} == {
        kind: {"kind", *keys} for kind, keys in records.KINDS.items()
    }
    for kind, keys in records.KINDS.items():
        required = {"kind"} | {key for key, (type_, _) in keys.items() if not type_.endswith("?")}
        assert required in kinds[kind], kind


# make and check


def test_make_orders_keys_and_drops_none():
    record = records.make("child", path="x", how="fork", pid=1)
    assert list(record) == ["kind", "pid", "how", "path"]
    assert "path" not in records.make("child", pid=1, how="fork", path=None)


def test_make_raises_on_a_fault_of_the_program():
    with pytest.raises(TypeError, match="child record without how"):
        records.make("child", pid=1)
    with pytest.raises(TypeError, match="child record without how"):
        records.make("child", pid=1, how=None)
    with pytest.raises(TypeError, match="sync record has no idea"):
        records.make("sync", id=1, idea=2)
    with pytest.raises(KeyError):
        records.make("nonsense")


def test_check_takes_what_make_makes_and_what_it_does_not_know():
    for record, _ in samples():
        assert records.check(record) is None
        assert records.check(record | {"x-mine": object()}) is None
    assert records.check({"kind": "unheard-of", "id": -1}) is None


CALLS = {"kind": "calls", "thread": 1, "fields": [], "stride": 8, "rows": b""}
FIELD = {"name": "ts", "type": "u64", "offset": 0}


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ({"kind": "sync"}, "sync without id"),
        ({"kind": "sync", "id": None}, "sync.id is not of type u64"),
        ({"kind": "sync", "id": -1}, "sync.id is not of type u64"),
        ({"kind": "function", "name": "k", "id": 1 << 32}, "function.id is not of type u32"),
        ({"kind": "sync", "id": 1 << 64}, "sync.id is not of type u64"),
        ({"kind": "sync", "id": True}, "sync.id is not of type u64"),
        ({"kind": "sync", "id": 1.0}, "sync.id is not of type u64"),
        ({"kind": "library_end", "path": b"x"}, "library_end.path is not of type str"),
        ({"kind": "child", "pid": 1, "how": "fork", "path": None}, "child.path is not of type str"),
        ({"kind": "chunk", "used": 0, "data": "x"}, "chunk.data is not of type bin"),
        (CALLS | {"fields": {}}, "calls.fields is not an array"),
        (CALLS | {"fields": [FIELD, 1]}, "calls.fields is not a map"),
        (CALLS | {"fields": [FIELD, {"name": "x", "type": "u8"}]}, "calls.fields without offset"),
        (CALLS | {"fields": [FIELD | {"offset": "8"}]}, "calls.fields.offset is not of type u64"),
    ],
)
def test_check_names_the_fault(record, fault):
    assert records.check(record) == fault
