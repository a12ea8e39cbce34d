"""Kernel names shortened to fit little room."""

import pytest

from gpt.screen.brief import brief_name, fit_names, fit_paths

NORM = "at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, {}>(int, float, float const*)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_{}<float>, std::array<char*, 3ul> >(int)"
)
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_"


def test_parameters_go_first_then_namespaces_then_the_end():
    name = NORM.format("true")
    assert fit_names([name], len(name)) == [name]
    assert fit_names([name], len(name) - 1) == [name.partition("(int")[0]]
    assert fit_names([name], 60) == ["vectorized_layer_norm_kernel<float, float, true>"]
    assert fit_names([name], 20) == ["vectorized_layer_no…"]
    assert brief_name(MANGLED) == "vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >"
    assert brief_name("triton_poi_fused_add_0") == "triton_poi_fused_add_0"


@pytest.mark.parametrize("width", [12, 20, 36, 48, 80])
def test_different_names_look_different(width):
    names = [NORM.format(value) for value in ("true", "false")]
    names += [ADD.format(what).removeprefix("void ") for what in ("add", "mul", "lerp")]
    names += [
        "f(int)",
        "f(float)",
        "triton_red_fused_0",
        "triton_red_fused_1" + "0" * 80,
        "triton_red_fused_1" + "1" * 80,
    ]
    found = fit_names(names, width)
    assert len({*found}) == len(names) and max(map(len, found)) <= width
    assert fit_names([*names, *names], width) == [*found, *found]


@pytest.mark.parametrize(
    "name", ["", ")", "()", "(", "((", "a::", "::", "operator()(int)", "x" * 4000, "a(b" * 2000, "/" * 99]
)
def test_any_name_fits(name):
    (found,) = fit_names([name], 12)
    assert len(found) <= 12
    assert all(len(line) <= 12 for line in fit_names([name, name + "x", f"  {name}"], 12))


def test_paths_that_are_cut_stay_apart():
    folder = "sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl!/sgl_kernel/"
    names = ("sm100/common_ops.abi3.so", "sm90/common_ops.abi3.so", "flash_ops.abi3.so", "spatial_ops.abi3.so")
    for width in (16, 24, 40):
        found = fit_paths([folder + name for name in names], width)
        assert len({*found}) == len(names) and max(map(len, found)) <= width
    assert fit_paths(["a/long/path/of/one.so"] * 2, 12) == ["a/lo…/one.so"] * 2  # the same path twice


def test_names_of_numba_fit():
    """The hash of the compilation options, in an ABI tag, is longer than a line."""
    tag = "[abi:v1][abi:cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3CwAkMXLaJtQYkOIgxJU0gCqOkEJoHkbttqdVhoqlspQGNFHSgJ5BnXagIA]"
    names = [f"saxpy{tag}(double, Array<float, 1, C, mutable, aligned>)", f"a::total{tag}(float)"]
    assert fit_names(names, 30) == ["saxpy", "total"]
    same = [f"k{tag}(float)", f"k{tag.replace('cw51', 'cw52')}(float)"]
    assert len(set(fit_names(same, 20))) == 2
    assert brief_name("_Z5saxpyB2v1B4cw51dd") == "saxpy"
