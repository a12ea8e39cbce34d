"""Handlers before and after a call: they see every call, and may change it or answer in place of the driver."""

import os
import subprocess

import pytest

from tests.runtime import hooked

CLIENT = r"""
int main(void) {
    begin();
    void *f = kernel("foo");
    for (int i = 0; i < 5; i++)
        printf("result %d\n", cuLaunchKernel(f, 1, 2, 3, 4, 5, 6, 7, (void *)1, (void **)0xb00, NULL));
    cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); // fails
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the library built with launch handlers."""
    out = tmp_path_factory.mktemp("handlers") / "libgpthook.so"
    return hooked.build_hook(out, hooked.ROOT / "tests" / "runtime" / "launch_handlers.c")


def run(tmp_path, library, handlers, calls, traced=True, source=CLIENT):
    """Return the client's output, and the trace."""
    program = hooked.compile_c(tmp_path / "client", source)
    env = os.environ | {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(hooked.runtime() / "sim"),
        "GPT_HOOK_OUTPUT": str(tmp_path / "t.mp") if traced else "",
        "GPT_HOOK_CALLS": calls,
        "TEST_HANDLERS": handlers,
        "GPT_HOOK_PROBE": "handlers",
    }
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines(), hooked.Trace(tmp_path / "t.mp") if traced else None


@pytest.mark.parametrize("calls", ["all", "none", "memory"])
def test_handlers_run_whether_or_not_a_call_is_recorded(tmp_path, library, calls):
    printed, trace = run(tmp_path, library, "look", calls)
    assert printed == ["result 0"] * 5 + ["before 6 after 6 failed 1"]
    assert trace.launches == {"foo": 5}


def test_handlers_run_without_a_trace(tmp_path, library):
    printed, _ = run(tmp_path, library, "answer", "all", traced=False)
    assert printed == ["result 999"] * 5 + ["before 6 after 6 failed 6"]


@pytest.mark.parametrize("calls", ["all", "none"])
def test_an_answer_in_place_of_the_driver(tmp_path, library, calls):
    printed, trace = run(tmp_path, library, "answer", calls)
    assert printed == ["result 999"] * 5 + ["before 6 after 6 failed 6"]
    assert not trace.launches
    launched = [call["result"] for call in trace.calls if call["type"] == "kernel"]
    assert launched == ([999] * 6 if calls == "all" else [])


@pytest.mark.parametrize("calls", ["all", "none"])
def test_another_function_and_other_arguments(tmp_path, library, calls):
    printed, trace = run(tmp_path, library, "change", calls)
    assert printed[0] == "0xf00 1 2 3 4 77 6 4096 0x1 0xa00 (nil)"
    assert printed[1:-1:2] == ["result 0"] * 5 and printed[-1] == "before 6 after 6 failed 0"
    assert trace.launches == {"foo": 6}  # the launches that the program made
    for call in [call for call in trace.calls if call["type"] == "kernel"][:5]:
        assert [call[f"block_{c}"] for c in "xyz"] == [4, 5, 6] and call["shared"] == 7


def test_launch_parameters_and_attributes(tmp_path, library):
    source = r"""
    int main(void) {
        void *module, *function;
        begin();
        int (*set)(void *, int, int) = dlsym(driver, "cuFuncSetAttribute");
        OK(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(.param .u16 a,"
                                     " .param .align 16 .b8 b[24], .param .u64 c) { ret; }\n"));
        OK(cuModuleGetFunction(&function, module, "foo"));
        OK(set(function, 8, 1000));
        OK(set(function, 8, 2000));
        launch(function);
    }
    """
    printed, _ = run(tmp_path, library, "ask", "none", source=source)
    *shown, total = printed[:-1]
    assert sorted(shown) == ["0: 8 2000 0", "3: 0 0 2", "3: 1 16 24", "3: 2 40 8"]
    assert total == "3 parameters, 4 properties"
