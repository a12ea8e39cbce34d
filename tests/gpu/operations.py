"""Run operations whose code is in containers of the libraries' own; tests/gpu/containers.py slims these libraries.

    python tests/gpu/operations.py [cuda|cpu]

Prints one line per operation: its name, and a digest of all bytes of its result, or the error. Standard error gets the
resources that the process used, as in workload.py. Inputs come from fixed seeds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator

START = time.perf_counter()

import torch  # noqa: E402 -- importing is measured, too
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

Operation = Callable[[], Tensor]


def random(*shape: int, type_: torch.dtype = torch.float32, device: str = "cuda") -> Tensor:
    """Return numbers that only depend on the shape; small integers for integer types."""
    numbers = torch.Generator().manual_seed(sum(shape))
    if type_ is torch.int8:
        return torch.randint(-8, 8, shape, generator=numbers, dtype=type_).to(device)
    wide = torch.complex128 if type_.is_complex else torch.float32
    return torch.randn(*shape, generator=numbers, dtype=wide).to(device).to(type_)


def transforms(device: str) -> Iterator[tuple[str, Operation]]:
    """Yield cuFFT transforms: powers of two, products of small primes, large primes, several dimensions, half
    precision.
    """
    for type_ in (torch.complex64, torch.complex128):
        for size in (8, 64, 1000, 1024, 4096, 6561, 16384, 109, 1009, 65537, 1 << 20):
            x = random(4, size, type_=type_, device=device)
            yield f"fft {type_} {size}", lambda x=x: torch.fft.fft(x)
        for shape in ((3, 240, 320), (2, 48, 50, 49), (1, 127, 131)):
            x = random(*shape, type_=type_, device=device)
            yield f"fftn {type_} {shape}", lambda x=x: torch.fft.fftn(x, dim=tuple(range(1, x.dim())))
            yield f"ifftn {type_} {shape}", lambda x=x: torch.fft.ifftn(x, dim=tuple(range(1, x.dim())))
    for type_ in (torch.float32, torch.float64):
        for size in (512, 1000, 1001, 32768):
            x = random(3, size, type_=type_, device=device)
            yield f"rfft {type_} {size}", lambda x=x: torch.fft.rfft(x)
            yield f"irfft {type_} {size}", lambda x=x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])
    x = random(2, 1024, type_=torch.float16, device=device)
    yield "rfft half", lambda: torch.view_as_real(torch.fft.rfft(x))


def products(device: str) -> Iterator[tuple[str, Operation]]:
    """Yield cuBLAS and cuBLASLt products: types, sizes that don't fill tiles, batches, biases, 8-bit integers."""
    types = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
    for type_ in types:
        for m, n, k in ((64, 64, 64), (128, 256, 512), (1, 1000, 768), (257, 129, 511), (1024, 1024, 1024), (3, 5, 7)):
            a, b = random(m, k, type_=type_, device=device), random(k, n, type_=type_, device=device)
            yield f"mm {type_} {m} {n} {k}", lambda a=a, b=b: a @ b
            yield f"mm of transposes {type_} {m} {n} {k}", lambda a=a, b=b: b.T.contiguous() @ a.T
        a, b = random(6, 65, 66, type_=type_, device=device), random(6, 66, 67, type_=type_, device=device)
        yield f"bmm {type_}", lambda a=a, b=b: torch.bmm(a, b)
        if not type_.is_complex:
            x, w = random(96, 320, type_=type_, device=device), random(512, 320, type_=type_, device=device)
            bias = random(512, type_=type_, device=device)
            yield f"linear {type_}", lambda x=x, w=w, bias=bias: functional.linear(x, w, bias)
            for gelu in (False, True):
                yield (
                    f"addmm and activation {type_} {gelu}",
                    lambda x=x, w=w, bias=bias, gelu=gelu: torch._addmm_activation(bias, x, w.T, use_gelu=gelu),
                )
    a, b = random(128, 256, type_=torch.int8, device=device), random(256, 64, type_=torch.int8, device=device)
    yield "mm of 8 bits", lambda: torch._int_mm(a, b)
    if device == "cuda":
        yield from eights(device)


def eights(device: str) -> Iterator[tuple[str, Operation]]:
    """Yield operations on 8-bit floats with scales, and single precision on tensor cores."""
    one = torch.ones((), device=device)
    for type_ in (torch.float8_e4m3fn, torch.float8_e5m2):
        a = random(128, 256, device=device).to(type_)
        b = random(512, 256, device=device).to(torch.float8_e4m3fn).T
        for out in (torch.bfloat16, torch.float16):
            yield (
                f"scaled mm {type_} {out}",
                lambda a=a, b=b, out=out: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out),
            )

    def tensor_cores() -> Tensor:
        torch.backends.cuda.matmul.allow_tf32 = True
        result = random(512, 512, device=device) @ random(512, 384, device=device)
        torch.backends.cuda.matmul.allow_tf32 = False
        return result

    yield "mm by tensor cores", tensor_cores


def sparse(device: str) -> Iterator[tuple[str, Operation]]:
    """Yield cuSPARSELt (two of four) and cuSPARSE (rows) operations."""
    from torch.sparse import to_sparse_semi_structured

    for type_ in (torch.float16, torch.bfloat16, torch.int8):
        pattern = torch.tensor([0, 0, 1, 1], dtype=type_, device=device).tile(256, 64)
        a = random(256, 256, type_=type_, device=device) * pattern
        b = random(256, 128, type_=type_, device=device)

        def product(a: Tensor = a, b: Tensor = b) -> Tensor:
            torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = False
            return torch.mm(to_sparse_semi_structured(a), b.T.contiguous().T)

        yield f"two of four {type_}", product
    for type_ in (torch.float32, torch.float64, torch.complex64):
        dense = random(200, 300, type_=type_, device=device)
        rows = torch.where(dense.real > 1, dense, 0).to_sparse_csr()
        other, vector = random(300, 70, type_=type_, device=device), random(300, type_=type_, device=device)
        yield f"rows by a matrix {type_}", lambda rows=rows, other=other: rows @ other
        yield f"rows by a vector {type_}", lambda rows=rows, vector=vector: rows @ vector
        yield f"rows by rows {type_}", lambda rows=rows: (rows @ rows.to_dense().T.to_sparse_csr()).to_dense()


def others(device: str) -> Iterator[tuple[str, Operation]]:
    """Yield cuDNN, cuSOLVER and cuRAND operations, all in one process."""
    for type_ in (torch.float32, torch.float16, torch.bfloat16):
        x = random(2, 32, 28, 28, type_=type_, device=device)
        w = random(64, 32, 3, 3, type_=type_, device=device)
        yield f"convolution {type_}", lambda x=x, w=w: functional.conv2d(x, w, padding=1)
    a = random(96, 96, type_=torch.float64, device=device)
    yield "solve", lambda: torch.linalg.solve(a, a.T @ a)
    yield "eigenvalues", lambda: torch.linalg.eigvalsh(a + a.T)
    yield "singular values", lambda: torch.linalg.svdvals(a)


def digest(result: Tensor) -> str:
    """Return a digest of a result's bytes."""
    flat = result.detach().resolve_conj().contiguous().cpu().flatten().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    """Do all operations, and print the digests."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.backends.cudnn.benchmark = False
    for group in (transforms, products, sparse, others):
        for name, operation in group(device):
            try:
                line = digest(operation())
            except Exception as error:
                line = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            print(f"{name}: {line}", flush=True)
    seconds = time.perf_counter() - START

    from workload import facts

    print(json.dumps(facts(seconds, device)), file=sys.stderr)


if __name__ == "__main__":
    main()
