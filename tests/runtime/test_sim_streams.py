"""Streams of the simulated device: work is done later, in order, and outlives the thread or stream that issued it."""

from tests.runtime import simulated
from tests.runtime.hooked import PROGRAMS
from tests.runtime.simulated import GATES


def test_work_is_done_later_and_in_order(play):
    play(PROGRAMS / "work_is_done_later_and_in_order.c")


def test_streams_wait_for_each_other(play):
    play(PROGRAMS / "streams_wait_for_each_other.c")


def test_objects_destroyed_while_they_have_work(play):
    play(PROGRAMS / "objects_destroyed_while_they_have_work.c")


def test_a_child_forked_amid_work_is_refused_and_ends(play):
    play(PROGRAMS / "a_child_forked_amid_work_is_refused_and_ends.c")


def test_a_delay_of_all_work(play):
    source = r"""
    int main(void) {
        begin();
        void *first, *last, *f = kernel("foo");
        OK(D(cuEventCreate)(&first, 0));
        OK(D(cuEventCreate)(&last, 0));
        OK(D(cuEventRecord)(first, (void *)0));
        launch(f);
        OK(D(cuEventRecord)(last, (void *)0));
        OK(D(cuEventQuery)(first)); // recording takes no time, but `last` waits for the kernel
        IS(600, D(cuEventQuery)(last));
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
        IS(600, D(cuStreamQuery)((void *)0)); // the legacy stream waits for threads' default streams
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


def test_a_thread_that_cannot_start(tmp_path):
    """With no process left for this user (ulimit -u), work is refused with a reason, and can be enqueued later."""
    source = r"""
    #define ARGUMENTS pthread_t *thread, const pthread_attr_t *how, void *(*function)(void *), void *given
    static int refuses;
    int pthread_create(ARGUMENTS) { // found before libc's
        int (*create)(ARGUMENTS) = dlvsym(RTLD_NEXT, "pthread_create", "GLIBC_2.2.5");
        return refuses ? EAGAIN : create(thread, how, function, given);
    }
    int main(void) {
        begin();
        void *stream;
        uint64_t memory;
        int five = 5, found = 0;
        OK(D(cuStreamCreate)(&stream, 1));
        OK(D(cuMemAlloc_v2)(&memory, sizeof(five)));
        refuses = 1;
        IS(304, D(cuMemcpyHtoDAsync_v2)(memory, &five, sizeof(five), stream));
        OK(D(cuStreamSynchronize)(stream));
        refuses = 0;
        OK(D(cuMemcpyHtoDAsync_v2)(memory, &five, sizeof(five), stream));
        OK(D(cuMemcpyDtoHAsync_v2)(&found, memory, sizeof(found), stream));
        OK(D(cuStreamSynchronize)(stream));
        assert(found == 5);
    }
    """
    done = simulated.run(simulated.build(tmp_path / "client", source, "-rdynamic"))
    line = "libcuda.so.1: error: cannot start a thread for a stream: Resource temporarily unavailable\n"
    assert (done.returncode, done.stderr) == (0, line)
