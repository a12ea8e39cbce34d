"""Run the interpreter's kernels on a GPU, and compare memory bit for bit: `python tests/gpu/sass_interp.py`.

Every case of tests/sass/interp/cases.py is launched LAUNCHES times from its cubin. Each result is compared with the
interpreter's word for word, except for the approximations of MUFU. The table has a line for each case that differs, and
`--out` is the JSON file for all results (GPT_GPU_OUT/sass_interp.json). `--cubins` names a folder of cubins that were
compiled elsewhere.

A second experiment finds out where lanes continue after a BSYNC: after it, or at the label of the BSSY. Kernels run
with every such label pointing to an EXIT. If nothing changes, the hardware ignores the labels.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt.sass.words import guard_of, opcode_of, parse_words, with_target
from tests import cuda
from tests.sass.interp.cases import CASES, KERNELS, Case, Words, differences, inputs
from tests.sass.interp.loader import LoadedCubin, load
from tests.sass.interp.run import interpret

LAUNCHES = 20
BSSY, EXIT = 0x945, 0x94D
LABELLED = ("nested", "meeting", "leaving", "choices", "stack", "quotients")


class Device:
    """A GPU, by the driver's functions."""

    def __init__(self) -> None:
        self.cu = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.ok("cuInit", 0)
        self.ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.ok("cuCtxSetCurrent", context)
        self.places = [self.allocate(words.nbytes) for words in inputs(CASES[0])]

    def ok(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed."""
        status = getattr(self.cu, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} fails: {status}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate bytes; return their address."""
        place = ctypes.c_uint64()
        self.ok("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place

    def module(self, image: bytes) -> ctypes.c_void_p:
        """Load a cubin."""
        found = ctypes.c_void_p()
        self.ok("cuModuleLoadData", ctypes.byref(found), image)
        return found

    def run(self, module: ctypes.c_void_p, case: Case) -> Words:
        """Return what a launch leaves in `out`."""
        kernel, values = ctypes.c_void_p(), inputs(case)
        self.ok("cuModuleGetFunction", ctypes.byref(kernel), module, case.kernel.encode())
        for place, words in zip(self.places, values, strict=True):
            self.ok("cuMemcpyHtoD_v2", place, ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(words.nbytes))
        arguments = [*self.places, ctypes.c_int(case.n)]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in arguments))
        size = case.grid, 1, 1, case.block, 1, 1, case.dynamic
        self.ok("cuLaunchKernel", kernel, *size, None, pointers, None)
        self.ok("cuCtxSynchronize")
        out = values[1]
        self.ok("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), self.places[1], ctypes.c_size_t(out.nbytes))
        return out


def turned(image: bytes, cubin: LoadedCubin, kernel: str) -> bytes:
    """Return a cubin in which every BSSY of a kernel points to an EXIT."""
    section = cubin.find(f".text.{kernel}")
    assert section
    words = parse_words(section.data)
    end = next(index for index, word in enumerate(words) if opcode_of(word) == EXIT and guard_of(word).always)
    for index, word in enumerate(words):
        if opcode_of(word) == BSSY:
            words[index] = with_target(word, "imm32", 16 * index, 16 * end)
    code = b"".join(word.to_bytes(16, "little") for word in words)
    assert image.count(section.data) == 1
    return image.replace(section.data, code)


def compile_all(folder: Path | None) -> dict[str, bytes]:
    """Compile each file of kernels, and return the cubins."""
    names = sorted({case.file for case in CASES})
    if folder:
        return {name: (folder / f"{name}.cubin").read_bytes() for name in names}
    return {name: cuda.nvrtc_compile((KERNELS / f"{name}.cu").read_text(), "sm_90") for name in names}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sass_interp.py")
    parser.add_argument("--cubins", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    images, device = compile_all(options.cubins), Device()
    loaded = {name: load(image) for name, image in images.items()}
    modules = {name: device.module(image) for name, image in images.items()}
    rows = []
    for case in CASES:
        wanted, launch = interpret(loaded[case.file], case, strict=True)
        runs = [device.run(modules[case.file], case) for _ in range(LAUNCHES)]
        wrong = [differences(case, wanted, found) for found in runs]
        first = [[at, f"{wanted[at]:08x}", f"{runs[0][at]:08x}"] for at in wrong[0][:8]]
        bits = [int((wanted != found).sum()) for found in runs]
        digest = hashlib.sha256(runs[0].tobytes()).hexdigest()[:16]
        row = {
            "case": case.name,
            "launches": LAUNCHES,
            "differ": sum(map(bool, wrong)),
            "first": first,
            "sha256": digest,
        }
        rows.append(row | {"other bits": max(bits), "instructions": launch.executed, "early": len(launch.early)})
        if row["differ"]:
            print(f"{case.name}: {row['differ']} of {LAUNCHES} launches, {len(wrong[0])} words: {first[:3]}")
    same = sum(not row["differ"] for row in rows)
    print(f"{same} of {len(rows)} cases equal in {LAUNCHES} launches each", flush=True)
    labels = []
    for case in CASES:
        if case.kernel in LABELLED:
            image = turned(images[case.file], loaded[case.file], case.kernel)
            module = device.module(image)
            plain = device.run(modules[case.file], case)
            found = [device.run(module, case) for _ in range(LAUNCHES)]
            labels.append({"case": case.name, "differ": sum(bool((one != plain).any()) for one in found)})
    print("labels turned: " + ", ".join(f"{one['case']} {one['differ']}/{LAUNCHES}" for one in labels))
    folder = os.environ.get("GPT_GPU_OUT")
    out = options.out or (Path(folder) / "sass_interp.json" if folder else None)
    if out:
        out.write_text(json.dumps({"cases": rows, "labels": labels}, indent=1) + "\n")
    return 0 if same == len(rows) else 1


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
