"""Memory allocated by graphs, and the simulated device's memory counts: status codes and counts match an H200's (driver
580).
"""

from textwrap import dedent

from tests.runtime.hooked import PROGRAMS

GRAPHS = '#include "graph_memory.h"\n'


def test_each_launch_allocates(play):
    play(PROGRAMS / "each_launch_allocates.c")


def test_captured_allocations(play):
    play(PROGRAMS / "captured_allocations.c")


def test_operations_refused_for_graphs_that_allocate(play):
    play(PROGRAMS / "operations_refused_for_graphs_that_allocate.c")


def test_answers_depend_on_the_order_of_calls(play):
    """The order of calls matters, not the order of execution: work may use memory that a later call frees, but no
    memory that an earlier call freed.
    """
    play(PROGRAMS / "answers_depend_on_the_order_of_calls.c", GPT_SIM_MEMORY=str(1 << 30))


def test_kernels_use_what_was_there_when_they_were_launched(sim_play):
    script = """
    from threading import Event
    module = load(PTX)
    store = function(module, "store")
    s, t, memory, plain = c_void_p(), c_void_p(), c_uint64(), Memory(1)
    for stream in (s, t):
        ok(cu.cuStreamCreate(byref(stream), 1))
    gate = Event()
    wait = CFUNCTYPE(None, c_void_p)(lambda unused: gate.wait())

    def closed(stream):
        gate.clear()
        ok(cu.cuLaunchHostFunc(stream, wait, None))

    for size in (64, 64 << 20, 3 << 20):
        ok(cu.cuMemAllocAsync(byref(memory), c_size_t(size), s))
        ok(cu.cuStreamSynchronize(s))
        closed(t)
        for at in (0, size - 4):
            ok(launch(store, 1, 1, memory.value + at, stream=t))
        ok(cu.cuMemFreeAsync(memory, s))
        ok(cu.cuStreamSynchronize(s))
        gate.set()
        ok(cu.cuStreamSynchronize(t))
    ok(cu.cuMemAllocAsync(byref(memory), c_size_t(64), s))
    closed(s)
    ok(cu.cuMemFreeAsync(memory, s))
    ok(launch(store, 1, 1, memory, stream=t))
    print(cu.cuStreamSynchronize(t))
    gate.set()
    """
    ptx = """.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p) {
.reg .b64 %a;
ld.param.u64 %a, [p];
st.u32 [%a], 1;
ret;
}
"""
    done = sim_play(f"PTX = {ptx.encode()!r}\n" + dedent(script))
    assert (done.returncode, done.stdout) == (0, "700\n"), done.stderr
    assert (
        done.stderr.endswith(", 0 bytes into an allocation of 64 bytes that was freed\n")
        and done.stderr.count("\n") == 1
    )


def test_node_placement_restrictions(play):
    play(PROGRAMS / "node_placement.c")


def test_the_limit_of_memory(play):
    play(PROGRAMS / "the_limit_of_memory.c", GPT_SIM_MEMORY=str(1 << 30))
