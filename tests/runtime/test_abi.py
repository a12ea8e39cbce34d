"""names.h, functions.h and abi/cuda.h against the real cuda.h.

`python -m tests.runtime.test_abi` prints the lines of names.h for another cuda.h, `... sim` those of functions.h.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests import cuda
from tests.runtime.hooked import ROOT

NAMES = ROOT / "runtime" / "hook" / "entry" / "names.h"
FUNCTIONS = ROOT / "runtime" / "sim" / "functions.h"
ABI = ROOT / "runtime" / "abi" / "cuda.h"
STACK_WORDS = 32  # stub.h
BY_VALUE = {"CUipcMemHandle": 8, "CUipcEventHandle": 8}  # words of structs that travel on the stack


def declared() -> dict[str, int]:
    """Every function that cuda.h declares in any mode, with the words of its arguments on the stack.

    STACK_WORDS stands for one with arguments in vector registers.
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


def functions() -> list[str]:
    """The lines of functions.h: the versions of CUDA are those in the names of the types of cuda*Typedefs.h.

    The variants of a function are numbered in the order of the versions that they came with.
    """
    since = defaultdict(set)
    for header in cuda.headers().glob("cuda*Typedefs.h"):
        for base, version, threads in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)", header.read_text()):
            since[base, threads].add(int(version))
    threads = {name[:-5]: name[-5:] for name in declared() if re.search("_pt[ds][sz]$", name)}
    threads |= {f"{base}_v2": thread for base, thread in since if thread and base.startswith("cuGL")}
    lines = []
    for (base, thread), versions in since.items():
        for i, version in enumerate(sorted(versions) if not thread and base != "cuWGLGetDevice" else ()):
            suffix = f"_v{i + 1}" if i else ""
            variant = threads.get(base + suffix)
            lines.append(f"P({base}, {suffix}, {version}, {variant})" if variant else f"X({base}, {suffix}, {version})")
    return sorted(lines, key=lambda line: line[2:].replace(",", " "))


def test_every_function_is_exported_by_the_simulated_device():
    assert re.findall(r"^[XP]\(.*\)", FUNCTIONS.read_text(), re.M) == functions()


def test_every_function_of_cuda_h_is_known():
    listed = {name: int(words) for name, words in re.findall(r"^NAME\((\w+), (\d+)\)", NAMES.read_text(), re.M)}
    real = declared()
    assert len(real) > 600
    assert listed == real and list(listed) == sorted(listed)  # it is searched by halves
    assert max(real.values()) <= STACK_WORDS
    count = re.search(r"#define HOOK_NAMES (\d+)", NAMES.with_name("stub.h").read_text())
    assert count and int(count[1]) == len(listed)


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
    names = (f"NAME({function}, {stack})" for function, stack in declared().items())
    print("\n".join(functions() if "sim" in sys.argv else names))
