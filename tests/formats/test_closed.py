"""Closed code is recognized under any file name, and open code isn't mistaken for it.

Only the containers of NVIDIA's libraries and the names of symbols are read, nothing else.
"""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from gpt.extract.contents import Opener
from gpt.formats import closed
from gpt.formats.cubin import parse_cubin
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from tests.formats import forge, samples
from tests.packages import LARGE, PACKAGES, Package, fetch

CLOSED = [
    "_ZN6cublas18gemv_kernel_helperIfEEvPT_",
    "_Z10dot_kernelIfLi128ELi0E15cublasDotParamsI16cublasGemvTensorIKfES0_IfEEEvT2_",
    "_Z25batch_gemm_kernel1x1_coreIfffLb0EEvPT_",
    "_ZN8cusparse15csrmm_v3_kernelIiEEvT_",
    "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_cublas",
    "nvjet_hsh_128x128_64x4",
    "_Z11regular_fftILj8E3EPTILj8EEEvT_",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_nn",
    "ampere_sgemm_128x64_nn",
    "_ZN5cudnn3ops10scalePackdIfEEvPT_",
    "_Z20generate_seed_pseudoyyP17curandStateXORWOW",
    "_ZN6nvjpeg20forwardDct32x8KernelI6uchar2Li1ELi32ELi8EEEvNS_12FwdDctParamsE",
    "_ZN6culj9215metadata_kernelEPNS_9ImageInfoEPmPKPKhm",
]
OPEN = [
    "_Z10dot_kernelPKfS0_Pf",
    "_Z4gemmPfS_S_i",
    "ampere_test",
    "gather_core",
    "my_sgemm_kernel",
    "triton_poi_fused_add_0",
    "_ZN2at4cuda6philox12unpack_cudnnENS_15PhiloxCudaStateEPlS3_",
    "_ZN2at6native43_GLOBAL__N__distribution_elementwiseI24curandStatePhilox4_32_10EEvT_",
    "_ZN7cutlass7Kernel2IN2at6native4GemmEEEvNT_6ParamsE",
    "_ZN3cub11EmptyKernelIvEEvv",
    "_Z30ncclDevKernel_AllReduce_Sum_f3224ncclDevKernelArgsStorageILm4096EE",
    "",
]


@pytest.mark.parametrize("name", CLOSED)
def test_kernels_of_closed_libraries_are_found(name):
    assert closed.find_closed_kernel(["mine", name, "another"]) == name


@pytest.mark.parametrize("name", OPEN)
def test_open_kernels_are_not_mistaken_for_closed_ones(name):
    assert closed.find_closed_kernel([name]) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/opt/lib/libcustatevec.so.1", True),
        ("libcutensornet.so.2", True),
        ("libcudensitymat.so.0", True),
        ("libnvcomp.so.5", True),
        ("torchvision.libs/libnvjpeg.36e11081.so.13", True),
        ("libcuvs.so", False),  # Apache-2.0, as are its wheels
        ("libraft.so", False),
        ("libnccl.so.2", False),
        ("libcu.so", False),
    ],
)
def test_names_of_files(path, expected):
    assert closed.is_closed_name([path], None) is expected


def test_one_closed_kernel_closes_its_element():
    """The element is from a program that links cublas_static, which its file doesn't show."""
    cubin = forge.compiled([b"mine", CLOSED[0].encode()], bytes(512))
    names = [kernel["name"] for kernel in parse_cubin(cubin).kernels]
    assert closed.find_reason(names, Source("program", cubin), None) == closed.REASON
    assert closed.find_reason(names[:1], Source("program", cubin), None) is None


def test_a_library_keeps_the_name_it_was_linked_with(tmp_path):
    made = samples.link(tmp_path / "libcublas.so.13", [samples.region(samples.ONE)], "-Wl,-soname,libcublas.so.13")
    other = samples.link(tmp_path / "libmine.so", [samples.region(samples.ONE)], "-Wl,-soname,libmine.so.1")
    renamed = shutil.copy(made, tmp_path / "harmless.so")
    found = {path: is_closed(path) for path in (made, other, renamed)}
    assert found == {made: True, other: False, renamed: True}


def test_many_dynamic_sections_take_no_time():
    count = 60_000
    body = b"\1" + bytes(closed.MAX_DYNAMIC - 1)
    head = forge.elf_header(shoff=64 + len(body), shnum=count, shstrndx=1)
    names = forge.section(0, 3, offset=64, size=16)
    dynamic = forge.section(0, closed.SHT_DYNAMIC, offset=64, size=len(body), link=1)
    source = Source("a", head + body + forge.section(0, 0) + names + dynamic * (count - 2))
    begin = time.process_time()
    assert not closed.is_closed_library(source, parse_image(source).elf)
    assert time.process_time() - begin < 10


def is_closed(path):
    with open(path, "rb") as file:
        source = Source(str(path), file.fileno())
        return closed.is_closed_library(source, parse_image(source).elf)


def test_the_table_is_sorted_and_says_nothing_twice():
    for kind, texts in closed.read_table().items():
        assert texts, kind
        assert len(set(texts)) == len(texts)
        assert list(texts) == sorted(texts), kind


def test_the_hook_has_the_same_names_of_files():
    header = (Path(__file__).parents[2] / "runtime" / "abi" / "records.h").read_text()
    names = re.findall(r'"(\w+)"', header.partition("#define GPT_CLOSED_FILES")[2].partition("\n\n")[0])
    assert tuple(names) == closed.read_table()["file"]


def share(path):
    """Count the elements that are closed by their kernels' names alone, and all elements with kernels."""
    with open(path, "rb") as file:
        source = Source(str(path), file.fileno())
        found = [placed for placed in parse_image(source).iter_elements() if placed.element.type == "cubin"]
        opener = Opener(source, found)
        names = [[k["name"] for k in opener.open(placed, keep=False).contents.kernels] for placed in found]
    names = [kernels for kernels in names if kernels]
    return sum(closed.find_closed_kernel(kernels) is not None for kernels in names), len(names)


@pytest.mark.full
def test_curand_under_another_name(tmp_path):
    path = shutil.copy(fetch(PACKAGES["curand"]), tmp_path / "libmine.so")
    assert is_closed(path)
    count, total = share(path)
    assert count == total > 10


@pytest.mark.full
@pytest.mark.skipif(not os.environ.get("GPT_TEST_LARGE"), reason="GPT_TEST_LARGE downloads it")
def test_cublas_under_another_name(tmp_path):
    cublas = Package("nvidia-cublas==13.10.0.20", "nvidia/cu13/lib/libcublas.so.13", "sm_90")
    path = shutil.copy(fetch(cublas), tmp_path / "libmine.so")
    assert is_closed(path)
    count, total = share(path)
    assert count > 0.8 * total


@pytest.mark.full
@pytest.mark.skipif(not os.environ.get("GPT_TEST_LARGE"), reason="GPT_TEST_LARGE downloads it")
@pytest.mark.parametrize("name", ["nccl", "torch"])
def test_open_libraries_are_open(name):
    path = fetch(LARGE[name])
    assert not is_closed(path)
    count, total = share(path)
    assert (count, total > 100) == (0, True)
