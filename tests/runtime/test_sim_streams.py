"""Streams of the simulated device: work is done later, in order, and outlives what issued it."""

from tests.runtime.simulated import GATES


def test_work_is_done_later_and_in_order(play):
    source = r"""
    static pthread_t own, other;
    static void take_note(void *unused) { other = pthread_self(); }
    static void back(void *stream, int status, void *data) {
        void *context, *event;
        assert(!status && stream == *(void **)data);
        IS(800, D(cuCtxSynchronize)()); // no calls in there
        IS(800, D(cuEventCreate)(&event, 0));
    }
    int main(void) {
        begin();
        void *stream, *event, *never, *late, *pinned, *f = kernel("foo");
        uint64_t memory;
        float ms;
        OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventCreate)(&late, 0));
        OK(D(cuEventCreate)(&never, 0));
        OK(D(cuMemAlloc_v2)(&memory, (size_t)64));
        OK(D(cuMemHostAlloc)(&pinned, (size_t)64, 0));
        OK(D(cuMemsetD8_v2)(memory, 0, (size_t)64));
        OK(D(cuCtxSynchronize)()); // or it could come after what is in a stream that is not blocking
        OK(D(cuStreamQuery)(stream));
        OK(D(cuEventQuery)(never));
        close_stream(stream, 0);
        IS(600, D(cuStreamQuery)(stream));
        OK(D(cuEventRecord)(event, stream));
        IS(600, D(cuEventQuery)(event));
        char pageable[64] = "first";
        memset(pinned, 0, 64), strcpy(pinned, "first");
        OK(D(cuMemcpyHtoDAsync_v2)(memory, pageable, (size_t)32, stream));
        OK(D(cuMemcpyHtoDAsync_v2)(memory + 32, pinned, (size_t)32, stream));
        strcpy(pageable, "second"), strcpy(pinned, "second"); // the one was staged, the other is read later
        OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        OK(D(cuLaunchHostFunc)(stream, take_note, (void *)0));
        IS(1, D(cuStreamAddCallback)(stream, back, &stream, 1));
        OK(D(cuStreamAddCallback)(stream, back, &stream, 0));
        OK(D(cuMemcpyDtoHAsync_v2)((char *)pinned + 32, memory, (size_t)32, stream));
        OK(D(cuEventRecord)(late, stream));
        IS(600, D(cuEventElapsedTime_v2)(&ms, event, late));
        IS(400, D(cuEventElapsedTime_v2)(&ms, never, late));
        assert(!((char *)pinned)[32]);
        usleep(2000);
        IS(600, D(cuEventQuery)(late));
        open_stream(0);
        OK(D(cuEventSynchronize)(late));
        OK(D(cuEventQuery)(event));
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuStreamQuery)(stream));
        assert(!pthread_equal(other, pthread_self()));
        assert(!strcmp((char *)pinned + 32, "first"));
        OK(D(cuMemcpyDtoH_v2)(pageable, memory, (size_t)64));
        assert(!strcmp(pageable, "first") && !strcmp(pageable + 32, "second"));
        OK(D(cuEventElapsedTime_v2)(&ms, event, late));
        assert(ms >= 0 && ms < 60000);
        close_stream(stream, 0);
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuEventRecord)(never, 0)); // in another stream: at once
        OK(D(cuEventQuery)(never));
        usleep(3000);
        open_stream(0);
        OK(D(cuEventSynchronize)(event));
        OK(D(cuEventElapsedTime_v2)(&ms, never, event));
        assert(ms >= 3);
    }
    """
    play(GATES + source)


def test_streams_wait_for_each_other(play):
    source = r"""
    static int order[8], steps;
    static void step(void *number) { order[__atomic_fetch_add(&steps, 1, __ATOMIC_SEQ_CST)] = (int)(long)number; }
    int main(void) {
        begin();
        void *blocking, *free_one, *legacy = (void *)1, *own = (void *)2, *event;
        int status;
        OK(D(cuStreamCreate)(&blocking, 0));
        OK(D(cuStreamCreate)(&free_one, CU_STREAM_NON_BLOCKING));
        OK(D(cuEventCreate)(&event, 0));

        close_stream(blocking, 0); // the legacy stream waits for it, others do not
        OK(D(cuLaunchHostFunc)(legacy, step, (void *)2));
        OK(D(cuLaunchHostFunc)(own, step, (void *)3)); // waits for the legacy one
        OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
        OK(D(cuStreamSynchronize)(free_one));
        assert(steps == 1 && order[0] == 1);
        IS(600, D(cuStreamQuery)(legacy));
        IS(600, D(cuStreamQuery)(own));
        open_stream(0);
        OK(D(cuStreamSynchronize)(own));
        assert(steps == 3 && order[1] == 2 && order[2] == 3);

        close_stream(legacy, 0);
        OK(D(cuLaunchHostFunc)(blocking, step, (void *)2));
        OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
        OK(D(cuStreamSynchronize)(free_one));
        assert(steps == 4);
        open_stream(0);
        OK(D(cuCtxSynchronize)());
        assert(steps == 5);

        // An event is what it was last recorded with, when it is waited for.
        close_stream(free_one, 0);
        OK(D(cuEventRecord)(event, free_one));
        OK(D(cuStreamWaitEvent)(own, event, 0));
        OK(D(cuLaunchHostFunc)(own, step, (void *)2));
        OK(D(cuEventRecord)(event, blocking));
        OK(D(cuEventQuery)(event));
        OK(D(cuEventDestroy_v2)(event));
        IS(600, D(cuStreamQuery)(own));
        assert(steps == 5);
        open_stream(0);
        OK(D(cuStreamSynchronize)(own));
        assert(steps == 6);
        // A synchronization of the legacy stream is one with those that it would wait for.
        close_stream(blocking, 0);
        IS(600, D(cuStreamQuery)(legacy));
        open_stream(0);
        OK(D(cuStreamSynchronize)(legacy));
        OK(D(cuStreamQuery)(blocking));
        void *graph;
        OK(D(cuStreamBeginCapture_v2)(blocking, 2));
        IS(906, D(cuStreamIsCapturing)(legacy, &status)); // a question does not harm
        IS(906, D(cuStreamGetCaptureInfo_v2)(NULL, &status, NULL, NULL, NULL, NULL));
        OK(D(cuStreamIsCapturing)(free_one, &status));
        assert(status == 0);
        OK(D(cuStreamIsCapturing)(blocking, &status));
        assert(status == 1);
        IS(906, D(cuLaunchHostFunc)(legacy, step, (void *)2)); // would wait for what is captured
        IS(901, D(cuStreamEndCapture)(blocking, &graph));
    }
    """
    play(GATES + source)


def test_what_is_destroyed_while_it_has_work(play):
    source = r"""
    static int done;
    static void *open_later(void *number) {
        usleep(2000);
        open_stream((long)number);
        return 0;
    }
    static void count(void *unused) { __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST); }
    static void behind(void (*destroy)(void), void *stream) {
        pthread_t thread;
        int before = done;
        close_stream(stream, 0);
        OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
        pthread_create(&thread, 0, open_later, (void *)0);
        destroy();
        assert(done == before + 1); // it waited
        pthread_join(thread, 0);
    }
    static uint64_t memory;
    static void *module, *context;
    static void free_memory(void) { OK(D(cuMemFree_v2)(memory)); }
    static void unload(void) { OK(D(cuModuleUnload)(module)); }
    static void destroy(void) { OK(D(cuCtxDestroy_v2)(context)); }
    static void reset(void) { OK(D(cuDevicePrimaryCtxReset_v2)(0)); }
    int main(void) {
        begin();
        void *stream, *again, *graph, *exec, *event;
        OK(D(cuStreamCreate)(&stream, 1));
        close_stream(stream, 0);
        OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
        OK(D(cuEventCreate)(&event, 0));
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuStreamDestroy_v2)(stream)); // at once; its work is still done
        OK(D(cuStreamCreate)(&again, 1));
        assert(again == stream);
        OK(D(cuStreamQuery)(again));
        assert(!done);
        open_stream(0);
        OK(D(cuEventSynchronize)(event));
        OK(D(cuCtxSynchronize)());
        assert(done == 1);

        OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
        behind(free_memory, again);
        OK(cuModuleLoadData(&module, PTX));
        behind(unload, again);

        // An executable graph that is launched runs as it was then.
        CUDA_HOST_NODE_PARAMS params = {count, 0};
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddHostNode)(&stream, graph, (void *)0, (size_t)0, &params));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        close_stream(again, 0);
        OK(D(cuGraphLaunch)(exec, again));
        OK(D(cuGraphLaunch)(exec, again));
        OK(D(cuGraphExecDestroy)(exec));
        OK(D(cuGraphDestroy)(graph));
        int before = done;
        open_stream(0);
        OK(D(cuStreamSynchronize)(again));
        assert(done == before + 2);

        // Memory that is freed in the order of a stream: it may not be used from the call on, whenever that is done.
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuStreamCreate)(&again, 1));
        close_stream(again, 0);
        OK(D(cuMemAllocAsync)(&memory, (size_t)100, again));
        OK(D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
        OK(D(cuMemFreeAsync)(memory, again));
        uint64_t start;
        size_t size;
        for (int i = 0; i < 2; i++) {
            IS(500, D(cuMemGetAddressRange_v2)(&start, &size, memory));
            IS(1, D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
            open_stream(0);
            OK(D(cuStreamSynchronize)(again));
        }
        OK(D(cuCtxDestroy_v2)(context));
        OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuStreamCreate)(&again, 1));
        behind(destroy, again);
        OK(D(cuStreamCreate)(&again, 1));
        behind(reset, again);
    }
    """
    play(GATES + source)


def test_a_child_forked_amid_work_is_refused_and_ends(play):
    source = r"""
    #include <sys/wait.h>
    static void *stream, *event, *f;
    static void refused(void) {
        uint64_t memory;
        IS(3, cuInit(0));
        IS(3, D(cuEventQuery)(event));
        IS(3, D(cuStreamSynchronize)(stream));
        IS(3, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        IS(3, D(cuMemAlloc_v2)(&memory, (size_t)4));
        IS(3, D(cuCtxSynchronize)());
    }
    static void *allocate(void *count) { // has the driver's lock most of the time
        void *context;
        uint64_t memory;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        while (*(atomic_int *)count) {
            OK(D(cuMemAlloc_v2)(&memory, (size_t)4));
            OK(D(cuMemFreeAsync)(memory, (void *)0));
        }
        return 0;
    }
    static void fork_there(void *child) {
        if ((*(int *)child = fork()))
            return;
        refused(); // and the child ends, as a thread of the driver's returns
    }
    int main(void) {
        begin();
        f = kernel("foo");
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuEventCreate)(&event, 0));
        close_stream(stream, 0);
        OK(D(cuEventRecord)(event, stream));
        atomic_int count = 1;
        int child = fork(), status;
        if (!child) {
            refused();
            exit(5);
        }
        IS(600, D(cuEventQuery)(event));
        assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        open_stream(0);
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuLaunchHostFunc)(stream, fork_there, &child));
        OK(D(cuStreamSynchronize)(stream));
        assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        pthread_t thread;
        pthread_create(&thread, 0, allocate, &count);
        for (int i = 0; i < 50; i++) {
            if (!(child = fork())) {
                refused();
                exit(6);
            }
            assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);
        }
        child = vfork();
        if (!child)
            execl("/bin/true", "true", (char *)0);
        assert(waitpid(child, &status, 0) == child && !status);
        count = 0;
        pthread_join(thread, 0);
        OK(D(cuLaunchHostFunc)(stream, gate, (void *)2)); // pending as the process ends
    }
    """
    play(GATES + source)


def test_a_delay_of_all_work(play):
    source = r"""
    int main(void) {
        begin();
        void *first, *last, *f = kernel("foo");
        OK(D(cuEventCreate)(&first, 0));
        OK(D(cuEventCreate)(&last, 0));
        OK(D(cuEventRecord)(first, (void *)0));
        launch(f);
        IS(600, D(cuEventQuery)(first));
        OK(D(cuEventSynchronize)(first));
        OK(D(cuEventRecord)(last, (void *)0));
        OK(D(cuStreamSynchronize)((void *)0));
        float ms;
        OK(D(cuEventElapsedTime_v2)(&ms, first, last));
        assert(ms >= 20);
    }
    """
    play(source, GPT_SIM_DELAY="20000")


def test_a_default_stream_of_the_thread(play):
    source = r"""
    static void *other_thread(void *context) {
        OK(cuCtxSetCurrent(context));
        OK(D(cuStreamQuery_ptsz)((void *)0)); // another stream
        OK(D(cuStreamQuery)((void *)2));
        return 0;
    }
    int main(void) {
        begin();
        void *context, *f = kernel("foo"), *launch_own, *launch_legacy;
        unsigned long long ids[2];
        int status;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(D(cuStreamGetId_ptsz)((void *)0, &ids[0]));
        OK(D(cuStreamGetId)((void *)2, &ids[1]));
        assert(ids[0] == ids[1]);
        OK(D(cuStreamGetId_ptsz)((void *)1, &ids[0]));
        assert(ids[0] != ids[1]);
        OK(D(cuGetProcAddress_v2)("cuLaunchKernel", &launch_own, 12000, 2ull, &status));
        OK(D(cuGetProcAddress_v2)("cuLaunchKernel", &launch_legacy, 12000, 0ull, &status));
        assert(launch_own == (void *)D(cuLaunchKernel_ptsz) && launch_legacy == (void *)cuLaunchKernel);
        OK(D(cuLaunchHostFunc_ptsz)((void *)0, gate, (void *)0));
        OK(((__typeof__(cuLaunchKernel))launch_own)(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        IS(600, D(cuStreamQuery_ptsz)((void *)0));
        pthread_t thread;
        pthread_create(&thread, 0, other_thread, context);
        pthread_join(thread, 0);
        IS(600, D(cuStreamQuery)((void *)0)); // the legacy stream waits for those of threads
        open_stream(0);
        OK(D(cuStreamSynchronize_ptsz)((void *)0));
    }
    """
    play(GATES + source)


def test_more_work_than_fits_in_a_stream(play):
    source = r"""
    static void *open_later(void *unused) {
        usleep(20000);
        open_stream(0);
        return 0;
    }
    int main(void) {
        begin();
        void *stream;
        uint64_t memory;
        size_t size = 4 << 20;
        char *image = malloc(size), *back = malloc(size);
        pthread_t thread;
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuMemAlloc_v2)(&memory, size));
        close_stream(stream, 0);
        pthread_create(&thread, 0, open_later, 0);
        for (int i = 0; i < 3000; i++) // waits in between
            OK(D(cuMemcpyHtoDAsync_v2)(memory, &i, sizeof(i), stream));
        assert(gates[0] == OPEN);
        memset(image, 7, size);
        OK(D(cuMemcpyHtoDAsync_v2)(memory, image, size, stream)); // more than is staged
        OK(D(cuStreamQuery)(stream));
        OK(D(cuMemcpyDtoHAsync_v2)(back, memory, size, stream));
        assert(!memcmp(image, back, size));
        pthread_join(thread, 0);
        free(image), free(back);
    }
    """
    play(GATES + source)
