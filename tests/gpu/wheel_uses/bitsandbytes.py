"""Quantize numbers to 8 bits and back, using only the library, because the package needs torch."""

import ctypes
import glob
import importlib.util
import os

import numpy

COUNT, BLOCK = 1 << 20, 4096


def prepare(device):
    """Load the library; return what computes."""
    folder = os.path.dirname(importlib.util.find_spec("bitsandbytes").origin)
    numbers = numpy.random.default_rng(1).standard_normal(COUNT, numpy.float32)
    code = numpy.linspace(-1, 1, 256, dtype=numpy.float32)
    if device == "cpu":
        return lambda: numbers.tobytes()
    wanted = os.environ.get("BNB_CUDA_VERSION", "13*")
    (path, *_) = sorted(glob.glob(f"{folder}/libbitsandbytes_cuda{wanted}.so"), reverse=True)
    library, driver = ctypes.CDLL(path), ctypes.CDLL("libcuda.so.1")
    library.cget_managed_ptr.restype = ctypes.c_void_p

    def on_gpu(array):
        """Copy an array to managed memory; return a view of it and its address."""
        address = library.cget_managed_ptr(ctypes.c_size_t(array.nbytes))
        view = numpy.frombuffer((ctypes.c_char * array.nbytes).from_address(address), array.dtype)
        view[:] = array.ravel()
        return view, ctypes.c_void_p(address)

    def compute():
        _, a = on_gpu(numbers)
        _, c = on_gpu(code)
        scales, m = on_gpu(numpy.zeros(COUNT // BLOCK, numpy.float32))
        packed, p = on_gpu(numpy.zeros(COUNT, numpy.uint8))
        again, r = on_gpu(numpy.zeros(COUNT, numpy.float32))
        library.cquantize_blockwise_fp32(c, a, m, p, BLOCK, COUNT)
        library.cdequantize_blockwise_fp32(c, p, m, r, BLOCK, COUNT, None)
        assert driver.cuCtxSynchronize() == 0
        assert numpy.abs(again - numbers).max() < 0.1
        return scales.tobytes() + packed.tobytes() + again.tobytes()

    return compute
