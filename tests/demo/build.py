"""Build the demo: libdemo.so with two kernels, each for sm_75, sm_90 and as PTX, and the program that uses it.

`python -m tests.demo.build DIR`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests import cuda

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "gpt" / "_runtime" / "sim"  # the CUDA runtime for both real and simulated devices
TARGETS = (("sm_75", "cubin"), ("sm_90", "cubin"), ("compute_90", "ptx"))


def build(folder: Path, codec: cuda.Codec = "balance") -> Path:
    """Build everything into `folder` and return the library, which has one fatbin region per .cu file."""
    folder.mkdir(parents=True, exist_ok=True)
    regions = []
    for name in ("matmul.cu", "fill.cu"):  # libdemo.c depends on this order
        source = (HERE / name).read_text()
        elements = [(arch, type_, cuda.nvrtc_compile(source, arch)) for arch, type_ in TARGETS]
        regions.append(cuda.fatbin(elements, codec))
    flags = [f"-L{RUNTIME}", f"-Wl,-rpath,{RUNTIME}", "-l:libcudart.so.13"]
    library = cuda.shared_library(folder / "libdemo.so", regions, sources=[HERE / "libdemo.c"], flags=flags)
    beside = "-Wl,--enable-new-dtags,-rpath,$ORIGIN"  # LD_LIBRARY_PATH has precedence over it
    cuda.c_compiler(HERE / "main.c", f"-L{folder}", "-ldemo", beside, "-o", folder / "main")
    return library


if __name__ == "__main__":
    build(Path(sys.argv[1]))
