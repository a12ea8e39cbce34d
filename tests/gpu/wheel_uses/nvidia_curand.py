"""Generate random numbers with each of cuRAND's generators."""

import ctypes
import sys
from pathlib import Path

COUNT = 1 << 20
PSEUDO = (101, 121, 141, 142, 161)  # XORWOW, MRG32k3a, MTGP32, MT19937, Philox
QUASI = (201, 203)  # Sobol's, of 32 and 64 bits
ON_HOST = (101, 121, 161)


def _library():
    """Load the first library found, because another package may have installed a second one."""
    return ctypes.CDLL(str(next(path for folder in sys.path for path in Path(folder).glob("nvidia/**/libcurand.so.*"))))


def _fill(library, create, kind, address):
    generator = ctypes.c_void_p()
    assert create(ctypes.byref(generator), kind) == 0
    if kind < min(QUASI):
        assert library.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(1)) == 0
    generate = library.curandGenerateLongLong if kind == QUASI[1] else library.curandGenerate
    assert generate(generator, address, ctypes.c_size_t(COUNT)) == 0
    assert library.curandDestroyGenerator(generator) == 0


def prepare(device):
    """Load the library; return what computes."""
    library = _library()
    host = ctypes.create_string_buffer(8 * COUNT)
    if device == "cpu":

        def compute_here():
            found = b""
            for kind in ON_HOST:
                _fill(library, library.curandCreateGeneratorHost, kind, host)
                found += host.raw[: 4 * COUNT]
            return found

        return compute_here

    driver = ctypes.CDLL("libcuda.so.1")
    memory = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(len(host))) == 0

    def compute():
        found = b""
        for kind in PSEUDO + QUASI:
            size = COUNT * (8 if kind == QUASI[1] else 4)
            _fill(library, library.curandCreateGenerator, kind, ctypes.c_void_p(memory.value))
            assert driver.cuMemcpyDtoH_v2(host, memory, ctypes.c_size_t(size)) == 0
            found += host.raw[:size]
        return found

    return compute
