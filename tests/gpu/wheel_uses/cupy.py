"""Sort, sum and scan integers, with kernels that were compiled into the wheel."""

import numpy

try:
    import cupy
except ImportError as error:  # without a GPU it may find no driver
    cupy, reason = None, error


def prepare(device):
    """Make the data; return what computes."""
    if device == "cuda" and cupy is None:
        raise reason
    numbers = numpy.random.default_rng(1).integers(0, 1 << 40, 1 << 20)

    def compute():
        if device == "cpu":
            return numpy.sort(numbers).tobytes() + numpy.argsort(numbers, kind="stable").tobytes()
        there = cupy.asarray(numbers)
        return cupy.asnumpy(cupy.sort(there)).tobytes() + cupy.asnumpy(cupy.argsort(there)).tobytes()

    return compute
