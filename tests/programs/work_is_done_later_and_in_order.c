// Run by test_work_is_done_later_and_in_order in tests/runtime/test_sim_streams.py.

#include "gates.h"

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
    OK(D(cuCtxSynchronize)()); // otherwise it could come after work in a non-blocking stream
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
    // Pageable memory was staged, pinned memory is read later.
    strcpy(pageable, "second"), strcpy(pinned, "second");
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
    OK(D(cuEventRecord)(never, 0)); // in another stream, so it completes at once
    OK(D(cuEventQuery)(never));
    usleep(3000);
    open_stream(0);
    OK(D(cuEventSynchronize)(event));
    OK(D(cuEventElapsedTime_v2)(&ms, never, event));
    assert(ms >= 3);
}
