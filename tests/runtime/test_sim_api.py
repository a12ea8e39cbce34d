"""The simulated device: what of the driver API there is."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import textwrap

from tests import cuda
from tests.runtime import hooked

FUNCTIONS = hooked.ROOT / "runtime" / "sim" / "functions.h"
DRIVER = hooked.runtime() / "sim" / "libcuda.so.1"


def ask(code: str, **env: str) -> tuple[list, str]:
    """Runs Python with `cu`, the simulated driver, initialized, and `c`, ctypes; returns what it gave to `answer`, and
    what was said."""
    begin = "import ctypes as c, json, re, sys; cu = c.CDLL(sys.argv[1]); cu.cuInit(0); answers = []"
    script = f"{begin}; answer = answers.append\n{textwrap.dedent(code)}\nprint(json.dumps(answers))"
    line = [sys.executable, "-", DRIVER, FUNCTIONS]
    done = subprocess.run(line, input=script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def constants(pattern: str) -> dict[str, int]:
    """What cuda.h says these names stand for."""
    text = (cuda.headers() / "cuda.h").read_text()
    return {name: int(value, 0) for name, value in re.findall(rf"\b({pattern})\s*=\s*(\w+)", text)}


def test_every_function_is_there():
    code = r"""
    found, status = c.c_void_p(), c.c_int()
    for name, suffix, version in re.findall(r"^[XP]\((\w+), (\w*), (\d+)", open(sys.argv[2]).read(), re.M):
        if name != "cuGraphInstantiate": # by that name others are found too
            cu.cuGetProcAddress_v2(name.encode(), c.byref(found), int(version), c.c_uint64(0), c.byref(status))
            same = found.value == c.cast(cu[name + suffix], c.c_void_p).value
            cu.cuGetProcAddress_v2(name.encode(), c.byref(found), int(version) - 1, c.c_uint64(0), c.byref(status))
            answer([name + suffix, same, bool(found.value)])
    """
    answers, said = ask(code)
    assert [answer for answer in answers if answer[1:] != [True, bool(re.search(r"_v\d$", answer[0]))]] == [] == [*said]
    assert len(answers) > 560


def test_a_function_that_is_not_simulated_says_so_once():
    answers, said = ask("for _ in range(3): answer(cu.cuTexObjectCreate(0, 0, 0, 0))")
    assert answers == [801, 801, 801]
    assert said == "libcuda.so.1: error: cuTexObjectCreate: not simulated: see gpt-sim(7)\n"


def test_names_and_meanings_of_all_errors():
    code = """
    text = c.c_char_p()
    for status in range(1100):
        for ask in (cu.cuGetErrorName, cu.cuGetErrorString):
            if ask(status, c.byref(text)) == 0:
                answer([status, text.value.decode()])
            else:
                assert text.value is None
    """
    answers, _ = ask(code)
    names = {text: status for status, text in answers[::2]}
    assert names == constants("CUDA_ERROR_\\w+|CUDA_SUCCESS")
    runtime = ctypes.CDLL(str(cuda.tool("nvcc").resolve().parent.parent / "lib" / "libcudart.so.13"))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    for status, text in answers[1::2]:
        if status not in (202, 916):  # the runtime does not have them
            assert text == runtime.cudaGetErrorString(status).decode()


def test_attributes():
    everything = constants("CU_DEVICE_ATTRIBUTE_\\w+")
    code = """
    value = c.c_int()
    for attribute in range(200):
        status = cu.cuDeviceGetAttribute(c.byref(value), attribute, 0)
        answer(None if status else value.value)
    properties = (c.c_int * 14)()
    assert cu.cuDeviceGetProperties(properties, 0) == 0
    answer(list(properties))
    """
    there = set(everything.values())
    for arch, expected in {
        "sm_75": (7, 5, 1024, 16, 65536, 65536, 0),
        "8.6": (8, 6, 1536, 16, 102400, 101376, 1024),
        "sm_90": (9, 0, 2048, 32, 233472, 232448, 1024),
        "sm_100": (10, 0, 2048, 32, 233472, 232448, 1024),
        "sm_121": (12, 1, 1536, 24, 102400, 101376, 1024),
    }.items():
        *values, properties = ask(code, GPT_SIM_ARCH=arch)[0]
        assert [i for i, value in enumerate(values) if value is not None] == sorted(there)
        assert tuple(values[i] for i in (75, 76, 39, 106, 81, 97, 111)) == expected
        assert values[10] == 32 and values[12] == values[82] == 65536 and values[41] == values[115] == 1
        assert properties[:7] == values[1:8] and properties[7:12] == values[8:13]
