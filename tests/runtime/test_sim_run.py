"""The simulated device runs kernels: objects of `gpt-asm --arch host`, here written in C."""


def test_threads_blocks_barriers_and_warps(play_kernels):
    kernels = r"""
    VARIABLES()
    KERNEL(fill) {
        ARGUMENT(uint64_t, to, 0);
        ARGUMENT(uint64_t, count, 8);
        uint64_t threads = t->ntid[0] * t->ntid[1] * t->ntid[2], at = CTAID * threads + TID;
        if (at < count)
            GLOBAL(to + 4 * at) += at;
    }
    KERNEL(reduce) { // reduces the numbers of threads, within a block
        ARGUMENT(uint64_t, to, 0);
        SHARED(TID) = TID;
        BARRIER();
        for (uint32_t half = t->ntid[0] / 2; half; half /= 2) {
            if (TID < half)
                SHARED(TID) += SHARED(TID + half);
            BARRIER();
        }
        if (!TID)
            GLOBAL(to + 4 * CTAID) = SHARED(0);
    }
    KERNEL(warps) { // sums over warps, over half warps, over lanes that haven't exited
        ARGUMENT(uint64_t, to, 0);
        uint32_t whole = TID, half = TID, rest = TID;
        MEET(UINT32_MAX, sum, &whole);
        MEET(TID % 2 ? 0xaaaaaaaa : 0x55555555, sum, &half);
        if (t->laneid == 5)
            return;
        MEET(UINT32_MAX, sum, &rest);
        GLOBAL(to + 12 * TID) = whole, GLOBAL(to + 12 * TID + 4) = half, GLOBAL(to + 12 * TID + 8) = rest;
    }
    KERNEL(barriers) { // two at once, of halves of the block; threads that exit; a count of values
        ARGUMENT(uint64_t, to, 0);
        uint32_t half = t->ntid[0] / 2, upper = TID >= half;
        if (TID == 3)
            return;
        for (int i = 0; i < 5; i++)
            t->services->barrier(t, 0, HOST_BARRIER_SYNC, 1 + upper, half, false);
        uint32_t count = t->services->barrier(t, 0, HOST_BARRIER_POPC, 0, 0, TID % 3 == 0);
        uint32_t all = t->services->barrier(t, 0, HOST_BARRIER_AND, 3, 0, TID != 7);
        uint32_t any = t->services->barrier(t, 0, HOST_BARRIER_OR, 3, 0, TID == 7);
        GLOBAL(to + 4 * TID) = count << 2 | all << 1 | any;
    }
    KERNEL(produce) { // one warp arrives, the others wait for it
        ARGUMENT(uint64_t, to, 0);
        for (int i = 0; i < 3; i++)
            if (t->warpid == 0) {
                if (!TID)
                    SHARED(0) = i + 1;
                t->services->barrier(t, 0, HOST_BARRIER_ARRIVE, 4, t->ntid[0], false);
                t->services->barrier(t, 0, HOST_BARRIER_SYNC, 5, t->ntid[0], false);
            } else {
                t->services->barrier(t, 0, HOST_BARRIER_SYNC, 4, t->ntid[0], false);
                GLOBAL(to + 4 * TID) += SHARED(0);
                t->services->barrier(t, 0, HOST_BARRIER_ARRIVE, 5, t->ntid[0], false);
            }
    }
    KERNEL(active) { // who is there
        ARGUMENT(uint64_t, to, 0);
        uint32_t all = MEET(0, NULL, NULL), some = 0;
        if (t->laneid % 4 == 1)
            some = t->services->meet(t, 3, 0, NULL, NULL);
        GLOBAL(to + 8 * TID) = all, GLOBAL(to + 8 * TID + 4) = some;
    }
    MODULE(HAS(fill, 2), HAS(reduce, 1, .shared_size = 4096), HAS(warps, 1), HAS(barriers, 1),
           HAS(produce, 1, .shared_size = 4), HAS(active, 1))
    """
    script = r"""
    memory = Memory(5000)
    ok(launch(function(module, "fill"), (3, 2, 5), (7, 5, 4), memory, 4190))
    assert memory.read() == [*range(4190), *[0] * 810]
    ok(launch(function(module, "reduce"), 300, 1024, memory))
    assert memory.read()[:300] == [1023 * 512] * 300
    ok(launch(function(module, "warps"), 1, 64, memory))
    found = memory.read()
    for thread in set(range(64)) - {5, 37}:
        warp = range(thread & 32, (thread & 32) + 32)
        sums = [sum(warp), sum(warp[thread % 2 :: 2]), sum(warp) - warp[5]]
        assert found[3 * thread :][:3] == sums, thread
    ok(launch(function(module, "barriers"), 20, 128, memory))
    assert [v for i, v in enumerate(memory.read()[:128]) if i != 3] == [(42 << 2 | 1)] * 127
    ok(cu.cuMemsetD32_v2(memory, 0, c_size_t(128)))
    ok(launch(function(module, "produce"), 1, 128, memory))
    assert memory.read()[:128] == [0] * 32 + [6] * 96
    ok(launch(function(module, "active"), 1, 40, memory))
    found = memory.read()[:80]
    assert found[::2] == [0xFFFFFFFF] * 32 + [0xFF] * 8
    assert found[1::2] == ([0, 0x22222222, 0, 0] * 8 + [0, 0x22, 0, 0] * 2)
    """
    play_kernels(kernels, script)


def test_spin_locks_and_grid_barriers(play_kernels):
    kernels = r"""
    VARIABLES()
    static uint32_t *lock_of(T, uint64_t to) { return global(t, 3, to, 8); }
    KERNEL(spin) { // a counter that is guarded by a lock of all threads
        ARGUMENT(uint64_t, to, 0);
        uint32_t *lock = lock_of(t, to);
        while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
            BRANCH();
        uint32_t was = lock[1];
        t->services->turn(t, 2);
        lock[1] = was + 1;
        __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
    }
    KERNEL(chain) { // each block waits for the next one
        ARGUMENT(uint64_t, to, 0);
        uint32_t *turn = global(t, 3, to, 4);
        while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != t->nctaid[0] - 1 - t->ctaid[0])
            BRANCH();
        __atomic_fetch_add(turn, 1, __ATOMIC_RELEASE);
    }
    KERNEL(grid) { // all threads of all blocks wait for each other
        ARGUMENT(uint64_t, to, 0);
        for (uint32_t i = 1; i <= 3; i++) {
            BARRIER();
            uint32_t *count = global(t, 3, to, 4);
            if (!TID) {
                __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
                while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < i * t->nctaid[0])
                    BRANCH();
            }
            BARRIER();
        }
    }
    KERNEL(poll) { // warps wait together, and blocks for the next one
        ARGUMENT(uint64_t, to, 0);
        for (;;) {
            uint32_t there = *(volatile uint32_t *)global(t, 3, to, 4) >= t->nctaid[0] - t->ctaid[0];
            MEET(UINT32_MAX, sum, &there);
            if (t->services->barrier(t, 0, HOST_BARRIER_OR, 0, 0, there))
                break;
            BRANCH();
        }
        if (!TID)
            __atomic_fetch_add((uint32_t *)to, 1, __ATOMIC_RELEASE);
    }
    MODULE(HAS(spin, 1), HAS(chain, 1), HAS(grid, 1), HAS(poll, 1))
    """
    script = r"""
    memory = Memory(2)
    ok(launch(function(module, "spin"), 6, 96, memory))
    assert memory.read() == [0, 6 * 96]
    memory.write([0])
    ok(launch(function(module, "chain"), 20, 1, memory))
    assert memory.read()[0] == 20
    memory.write([1])
    ok(launch(function(module, "poll"), 6, 64, memory))
    assert memory.read()[0] == 7
    memory.write([0])
    most = c_int()
    ok(cu.cuDeviceGetAttribute(byref(most), 16, 0))
    ok(launch(function(module, "grid"), 32 * most.value, 64, memory, cooperative=True))
    assert memory.read()[0] == 3 * 32 * most.value
    """
    play_kernels(kernels, script)


def test_variables_windows_and_parameters(play_kernels):
    kernels = r"""
    static const uint32_t table[3] = {7, 8, 9}, weights[2] = {5, 6};
    static const struct host_address to[] = {
        {0, "table", 4, 8, 0, 1}, {8, "weights", 4, 8, 0, 1}, {16, "weights", 4, 8},
        {24, "table", 0, 1, 8, 1}, {25, "table", 0, 1, 0, 1}, {32, "fun", 0, 8}};
    VARIABLES({"table", 12, 4, table}, {"weights", 8, 4, weights, .space = HOST_CONST},
              {"pointers", 40, 8, NULL, to, 6}, {"more", 4, 4, .space = HOST_CONST})
    KERNEL(sums) {
        ARGUMENT(uint64_t, to, 0);
        uint64_t *pointers = global(t, 3, t->variables[2], 40);
        const uint32_t *constant = (const uint32_t *)(t->constant + t->variables[1]);
        GLOBAL(to) = GLOBAL(pointers[0]) + GLOBAL(pointers[1]) + constant[0] +
                     *(uint32_t *)(t->constant + pointers[2]);
        GLOBAL(to + 4) = ((unsigned char *)pointers)[24] == (t->variables[0] >> 8 & 255) &&
                         ((unsigned char *)pointers)[25] == (t->variables[0] & 255) &&
                         pointers[4] == host_address_of("fun");
        GLOBAL(to + 8) = GLOBAL((uint64_t)parameters + 8);
        GLOBAL(to + 12) = t->dynamic_shared << 16 | t->shared_size;
        GLOBAL(t->variables[0]) += 1;
    }
    MODULE(HAS(sums, 2, .shared_size = 20, .shared_align = 128))
    """
    script = r"""
    memory = Memory(4)
    ok(launch(function(module, "sums"), 1, 1, memory, 77, shared=100))
    assert memory.read() == [8 + 6 + 5 + 6, 1, 77, 100 << 16 | 228], memory.read()
    variable, size = c_uint64(), c_size_t()
    ok(cu.cuModuleGetGlobal_v2(byref(variable), byref(size), module, b"table"))
    values = (c_uint32 * 3)()
    ok(cu.cuMemcpyDtoH_v2(values, variable, size))
    assert list(values) == [8, 8, 9]
    ok(cu.cuMemcpyHtoD_v2(variable, (c_uint32 * 3)(1, 2, 3), size))
    ok(launch(function(module, "sums"), 1, 1, memory, 78))
    assert memory.read()[0] == 2 + 6 + 5 + 6
    other = load(PATH)  # has variables of its own
    ok(launch(function(other, "sums"), 1, 1, memory, 79))
    assert memory.read()[0] == 8 + 6 + 5 + 6
    """
    play_kernels(kernels, script)


def test_streams_contexts_forks_and_unloading(play_kernels):
    kernels = r"""
    VARIABLES()
    KERNEL(wait) {
        ARGUMENT(uint64_t, to, 0);
        while (!__atomic_load_n((uint32_t *)global(t, 3, to, 4), __ATOMIC_RELAXED))
            BRANCH();
        __atomic_fetch_add((uint32_t *)global(t, 3, to + 4, 4), 1, __ATOMIC_RELAXED);
    }
    KERNEL(set) {
        ARGUMENT(uint64_t, to, 0);
        GLOBAL(to) = 1;
    }
    MODULE(HAS(wait, 1), HAS(set, 1))
    """
    script = r"""
    import os
    memory, function_ = Memory(2), function(module, "set")
    streams = [c_void_p() for _ in range(8)]
    for stream in streams:
        ok(cu.cuStreamCreate(byref(stream), 1))
    for stream in streams[:7]:  # they spin until another stream sets what they wait for
        ok(launch(function(module, "wait"), 3, 40, memory, stream=stream))
    child = os.fork()
    if not child:
        os._exit({launch(function_, 1, 1, memory), cu.cuInit(0), synchronize()} != {3})
    assert os.waitpid(child, 0)[1] == 0
    assert cu.cuStreamQuery(streams[0]) == 600
    ok(launch(function(module, "set"), 1, 1, memory, stream=streams[7]))
    ok(cu.cuModuleUnload(module))  # waits for them
    assert memory.read() == [1, 7 * 120]
    first, second = c_void_p(), c_void_p()
    ok(cu.cuCtxCreate_v2(byref(first), 0, 0))
    mine, broken = load(PATH), Memory(1)
    ok(launch(function(mine, "set"), 1, 1, 12))
    assert synchronize() == 700
    assert cu.cuCtxCreate_v2(byref(second), 0, 0) == 700  # the process can't use the device again
    ok(cu.cuCtxDestroy_v2(first))
    assert synchronize() == 700
    """
    play_kernels(kernels, script)


def test_library_unloaded_while_its_kernel_waits(play_kernels):
    """The context gets a module from the library only when the first of its kernels runs."""
    kernels = r"""
    VARIABLES()
    KERNEL(fill) { ARGUMENT(uint64_t, to, 0); ARGUMENT(uint64_t, value, 8); GLOBAL(to) = value; }
    MODULE(HAS(fill, 2))
    """
    script = """
    memory, library, kernel = Memory(1), c_void_p(), c_void_p()
    ok(cu.cuLibraryLoadFromFile(byref(library), PATH.encode(), None, None, 0, None, None, 0))
    ok(cu.cuLibraryGetKernel(byref(kernel), library, b"fill"))
    ok(launch(kernel, 1, 1, memory, 7))
    ok(cu.cuLibraryUnload(library))
    assert memory.read() == [7]
    ok(synchronize())
    """
    play_kernels(kernels, script, GPT_SIM_DELAY="50000")


def test_graph_destroyed_while_launched(play_kernels):
    kernels = r"""
    VARIABLES()
    KERNEL(fill) { ARGUMENT(uint64_t, to, 0); ARGUMENT(uint64_t, value, 8); GLOBAL(to) = value; }
    MODULE(HAS(fill, 2))
    """
    script = """
    memory, stream, graph, exec_ = Memory(1), c_void_p(), c_void_p(), c_void_p()
    fill = function(module, "fill")
    ok(cu.cuCtxSynchronize())
    ok(cu.cuStreamCreate(byref(stream), 1))
    ok(cu.cuStreamBeginCapture_v2(stream, 2))
    values = (c_uint64 * 2)(memory.value, 7)
    arguments = (c_void_p * 2)(addressof(values), addressof(values) + 8)
    ok(cu.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None))
    ok(cu.cuStreamEndCapture(stream, byref(graph)))
    ok(cu.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(0)))
    ok(cu.cuGraphLaunch(exec_, stream))
    ok(cu.cuGraphExecDestroy(exec_))
    ok(cu.cuGraphDestroy(graph))
    for _ in range(4):  # what it had is used for something else
        ok(cu.cuGraphCreate(byref(graph), 0))
        ok(cu.cuMemHostRegister_v2(cast(create_string_buffer(32), c_void_p), c_size_t(32), 0))
    ok(cu.cuStreamSynchronize(stream))
    assert memory.read() == [7]
    """
    play_kernels(kernels, script, GPT_SIM_DELAY="100000")


def test_capture_starts_while_a_graph_waits_for_room(play_kernels):
    """The launch fails, as other work in the stream would, and no node is left without a graph."""
    script = """
    import threading, time
    memory, stream, graph, exec_, captured = Memory(1), c_void_p(), c_void_p(), c_void_p(), c_void_p()
    context = c_void_p()
    ok(cu.cuCtxGetCurrent(byref(context)))
    ok(cu.cuStreamCreate(byref(stream), 1))
    ok(cu.cuGraphCreate(byref(graph), 0))
    ok(cu.cuGraphAddEmptyNode(byref(captured), graph, None, c_size_t(0)))
    ok(cu.cuStreamBeginCaptureToGraph(stream, graph, byref(captured), None, c_size_t(1), 2))
    ok(cu.cuStreamEndCapture(stream, byref(graph)))
    assert cu.cuStreamBeginCaptureToGraph(stream, graph, byref(stream), None, c_size_t(1), 2) == 1
    ok(cu.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(0)))
    ok(cu.cuStreamWaitValue32_v2(stream, c_uint64(memory.value), 1, 1))  # until it is 1
    for _ in range(1023):
        ok(cu.cuGraphLaunch(exec_, stream))
    answers = []
    def launch_it():
        ok(cu.cuCtxSetCurrent(context))
        answers.append(cu.cuGraphLaunch(exec_, stream))
    waiting = threading.Thread(target=launch_it)
    waiting.start()
    time.sleep(0.3)
    ok(cu.cuStreamBeginCapture_v2(stream, 2))
    c_uint32.from_address(memory.value).value = 1
    waiting.join()
    ok(cu.cuStreamEndCapture(stream, byref(captured)))
    ok(cu.cuGraphInstantiateWithFlags(byref(exec_), captured, c_uint64(0)))
    ok(cu.cuGraphLaunch(exec_, stream))
    ok(cu.cuCtxSynchronize())
    assert answers[0] in (0, 900), answers
    """
    play_kernels("VARIABLES()\nKERNEL(fill) { }\nMODULE(HAS(fill, 0))", script)
