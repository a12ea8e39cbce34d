"""Kernels of tinygrad's PTX renderer, generated without a GPU: `python tinygrad_kernels.py ARCH FOLDER`, with tinygrad
importable. The device is tinygrad's NULL, which schedules and renders, but runs nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["DEV"] = f"MOCK+NULL:PTX:sm_{sys.argv[1]}"

from tinygrad import Tensor, dtypes
from tinygrad.engine.realize import compile_linear
from tinygrad.helpers import Context
from tinygrad.uop.ops import Ops


def empty(*shape: int, dtype=dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


def iter_tensors() -> Iterator[Tensor]:
    """Yield common computations: elementwise work, reductions, products, convolutions, indexing, layers."""
    for dtype in (dtypes.float32, dtypes.half):
        a, b = empty(512, 512, dtype=dtype), empty(512, 512, dtype=dtype)
        yield a + b * 3
        yield a @ b
        yield a.softmax()
        yield a.layernorm()
        yield a.sum(0) + a.max(1)
        yield (a.exp() + b.sin() * a.sigmoid()).gelu()
        yield a.transpose(0, 1).contiguous()
        yield empty(8, 32, 28, 28, dtype=dtype).conv2d(empty(64, 32, 3, 3, dtype=dtype))
    yield empty(129, 67) @ empty(67, 33)
    yield empty(16, 16, dtype=dtypes.int8).matmul(empty(16, 16, dtype=dtypes.int8), dtype=dtypes.int32)
    yield empty(1000, dtype=dtypes.int32) // 7 % 13
    yield empty(1000, dtype=dtypes.int64) >> 3 ^ 5
    yield empty(1000, dtype=dtypes.uint8).cast(dtypes.float32).sqrt().cast(dtypes.uint16)
    yield empty(100, dtype=dtypes.float64).sqrt().reciprocal()
    yield empty(4096).argmax()
    yield empty(64, 64).cumsum(1)
    yield empty(256).sort()[0]
    yield empty(1000, 64)[empty(32, dtype=dtypes.int32)]
    yield (empty(64, 64) > 0).where(empty(64, 64), 0.5)
    yield empty(2, 8, 64, 32).scaled_dot_product_attention(empty(2, 8, 64, 32), empty(2, 8, 64, 32), is_causal=True)
    yield empty(8, 16, 32, 32).max_pool2d() + 1
    yield empty(8, 16, 32, 32).avg_pool2d(3)
    yield empty(8, 16, 32, 32).batchnorm(empty(16), empty(16), empty(16), empty(16)).relu()
    yield empty(128, 10).sparse_categorical_crossentropy(empty(128, dtype=dtypes.int32))
    yield empty(100, 100).pad(((1, 2), (3, 4))).flip(0).shrink(((5, 90), (7, 80))).contiguous()
    yield Tensor.rand(1000) < 0.5
    yield empty(64, 1000).std(1)
    yield empty(33, 65).triu().contiguous()


def main(folder: Path) -> None:
    for optimised in (True, False):
        with Context(NOOPT=0 if optimised else 1):
            for tensor in iter_tensors():
                for node in compile_linear(tensor.schedule_linear()).toposort():
                    if node.op is Ops.PROGRAM and node.src[-1].op is Ops.BINARY:
                        text = node.src[-1].arg
                        (folder / f"{hashlib.sha256(text).hexdigest()[:12]}.ptx").write_bytes(text)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
