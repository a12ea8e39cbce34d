"""runtime/abi: driver.h and cuda.h, compared with NVIDIA's headers.

`python -m tests.runtime.test_abi` prints driver.h for other headers, cuda.h first.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from tests import cuda
from tests.runtime.hooked import ROOT

DRIVER = ROOT / "runtime" / "abi" / "driver.h"
ABI = ROOT / "runtime" / "abi" / "cuda.h"
STACK_WORDS = 32  # stub.h
ROW = r"^([XP])\((\w+), (\w*), (\d+)(?:, (_\w+))?, (\d+)\)$"
BY_VALUE = {"CUipcMemHandle": 8, "CUipcEventHandle": 8}  # words of structs that travel on the stack


def declared() -> dict[str, int]:
    """Return every function that cuda.h declares in any mode, and how many words of its arguments are on the stack.

    STACK_WORDS stands for functions with arguments in vector registers.
    """
    found: dict[str, int] = {}
    for version in ((), ("-D__CUDA_API_VERSION_INTERNAL",)):
        for threads in ((), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",)):
            line = ["cc", "-E", "-P", f"-I{cuda.headers()}", *version, *threads, cuda.headers() / "cuda.h"]
            text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
            for name, parameters in re.findall(r"CUresult\s+(cu\w+)\(([^;]*?)\);", text):
                registers = words = 0
                if re.search(r"\b(float|double)\s+\w+\s*(,|$)", parameters):
                    found[name] = STACK_WORDS
                    continue
                for parameter in parameters.split(","):
                    type_ = parameter.split()[0]
                    if type_ in BY_VALUE and "*" not in parameter:
                        words += BY_VALUE[type_]
                    elif registers < 6:
                        registers += parameter.strip() != "void"
                    else:
                        words += 1
                found[name] = words + words % 2
    return dict(sorted(found.items()))


Row = tuple[str, str, int, str, int]  # name, suffix, since, suffix of the variant for threads, words


def functions() -> tuple[list[Row], list[Row]]:
    """Return the rows of driver.h, sorted: first for cuda.h, then for the other headers.

    CUDA versions come from the names of the types in cuda*Typedefs.h. A function's variants are numbered in the order
    of the versions that introduced them.
    """
    since = defaultdict(set)
    for header in cuda.headers().glob("cuda*Typedefs.h"):
        for base, version, threads in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)", header.read_text()):
            since[base, threads].add(int(version))
    words = declared()
    threads = {name[:-5]: name[-5:] for name in words if re.search("_pt[ds][sz]$", name)}
    threads |= {f"{base}_v2": thread for base, thread in since if thread and base.startswith("cuGL")}
    rows: tuple[list[Row], list[Row]] = [], []
    for (base, thread), versions in since.items():
        for i, version in enumerate(sorted(versions) if not thread and base != "cuWGLGetDevice" else ()):
            suffix = f"_v{i + 1}" if i else ""
            symbol = base + suffix
            row = (base, suffix, version, threads.get(symbol, ""), words.get(symbol, 0))
            rows[symbol not in words].append(row)
    return sorted(rows[0]), sorted(rows[1])


def listed() -> tuple[list[Row], list[Row]]:
    """Return the rows in the form that driver.h has."""
    parts = DRIVER.read_text().split("#ifdef DRIVER_ALL")
    found: list[list[Row]] = []
    for part in parts:
        rows = re.findall(ROW, part, re.M)
        assert all((kind == "P") == bool(thread) for kind, _, _, _, thread, _ in rows)
        found.append([(name, suffix, int(since), thread, int(words)) for _, name, suffix, since, thread, words in rows])
    return found[0], found[1]


def test_every_function_of_the_headers_is_listed():
    version = re.search(r"#define CUDA_VERSION (\d+)", (cuda.headers() / "cuda.h").read_text())
    assert version
    for ours, real in zip(listed(), functions(), strict=True):
        assert len(real) > 30
        assert [row for row in ours if row[2] <= int(version[1])] == real
        assert ours == sorted(ours)  # the hook uses a binary search
    assert len(listed()[0]) > 550


def test_words_agree_with_every_symbol_of_cuda_h():
    words = {name + suffix + end: n for name, suffix, _, thread, n in listed()[0] for end in {"", thread}}
    real = declared()
    assert len(real) > 600
    assert {name: words.get(name) for name in real} == real
    assert max(words.values()) <= STACK_WORDS


def test_no_other_file_lists_the_functions():
    """A second list would become outdated. Other files only name functions that they handle."""
    rows = [row for part in listed() for row in part]
    symbols = [name + suffix + end for name, suffix, _, thread, _ in rows for end in {"", thread}]
    assert len(symbols) == len(set(symbols)) > 700
    for file in (ROOT / "runtime").rglob("*.[chS]"):
        if file != DRIVER and file.name != "renamed.h":  # renamed.h is generated from it
            named = re.findall(r"^\s*[A-Z]+\((cu[A-Z]\w+)[,)].*\)$", file.read_text(), re.M)
            assert len(set(named) & set(symbols)) < 100, file
    table = (ROOT / "runtime" / "hook" / "entry" / "table.h").read_text().split("} types[]")[0]
    known = re.findall(r'^    \{"(cu\w+)",', table, re.M)
    assert len(known) == len(set(known)) > 100
    assert set(known) <= {name for name, *_ in rows}


def test_values_and_layouts_are_those_of_cuda_h():
    text = re.sub(r"//.*", "", ABI.read_text())
    lines = []
    for name, value in re.findall(r"\b(CU_?[A-Z_]\w+) = (\w+)", text):
        lines += [f'_Static_assert({name} == {value}, "{name}");']
    for members, struct in re.findall(r"typedef struct \{\n(.*?)\n\} (\w+);", text, re.S):
        lines.append(f'_Static_assert(sizeof({struct}) == sizeof(our_{struct}), "{struct}");')
        flat = re.sub(r"(union|struct) \{.*?\n    \} (\w+);", r"int \2;", members, flags=re.S)
        for declaration in flat.split(";"):
            for name in re.findall(r"(\w+)(?:\[\d+\])?(?:,|$)", declaration.strip()):
                if not name.startswith(("reserved", "pad")):
                    lines += [f"SAME({struct}, {name})"]
    assert len(lines) > 60
    with tempfile.TemporaryDirectory() as folder:
        ours = re.sub(r"^enum \{[^}]*\};", "", text, flags=re.M)
        for name in re.findall(r"^(?:typedef .*?|\}) (CU\w+);", ours, re.M):
            ours = re.sub(rf"\b{name}\b", f"our_{name}", ours)
        Path(folder, "ours.h").write_text(ours)
        source = Path(folder, "abi.c")
        source.write_text(
            "#include <stddef.h>\n#include <stdint.h>\n#include <cuda.h>\n"
            '#include "ours.h"\n'
            "#define SAME(type, member) _Static_assert(offsetof(type, member) == offsetof(our_##type, member) && "
            "sizeof(((type *)0)->member) == sizeof(((our_##type *)0)->member), #type #member);\n" + "\n".join(lines)
        )
        cuda.c_compiler("-std=gnu11", f"-I{cuda.headers()}", "-c", source, "-o", Path(folder, "abi.o"))


if __name__ == "__main__":
    for part in functions():
        for name, suffix, since, thread, words in part:
            print(
                f"P({name}, {suffix}, {since}, {thread}, {words})"
                if thread
                else f"X({name}, {suffix}, {since}, {words})"
            )
