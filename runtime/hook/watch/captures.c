// Which calls were captured. The driver is asked after the call, and only while some stream of the process
// may be captured:
//
//   - a stream joins a capture by the very call that waits for an event in it;
//   - one call may be refused because the capture was invalidated, and was not captured;
//   - the driver has taken the handle of the stream by then. A wrong one would crash our question.
//
// Legacy streams are never captured. To ask about one fails while another stream is, or would break that
// capture.
//
// A capture that ends in an error, or with its stream, stays counted: then the driver is asked more often
// than it need be, and answers that nothing is captured.

#include "cuda_abi.h"
#include "watch.h"

_Atomic uint32_t hook_captures;
static _Atomic bool captured;

bool hook_has_captured(void) { return atomic_load(&captured); }

bool hook_is_captured(uint64_t stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return stream > CU_STREAM_LEGACY_HANDLE && hook_streams_setup() &&
           hook_cu.is_capturing((void *)stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool hook_begin_capture(void) {
    atomic_fetch_add(&hook_captures, 1);
    return !atomic_exchange(&captured, true);
}

void hook_end_capture(void) {
    uint32_t before = atomic_load(&hook_captures);
    while (before && !atomic_compare_exchange_weak(&hook_captures, &before, before - 1))
        ;
}
