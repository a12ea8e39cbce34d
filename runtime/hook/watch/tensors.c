// Tensors that the program names: `tensor` and `tensor_end` records.
//
// They use the same clock as calls, read in the thread that creates them, so we know which tensor was at an
// address when a kernel was launched.

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "hook/write/write.h"
#include "watch.h"

enum { TEXT_BYTES = 1023, DIMS = 64 };

static struct gpt_str text_of(const char *text) {
    return (struct gpt_str){text, text ? strnlen(text, TEXT_BYTES) : 0};
}

// Return the thread whose chunk to write to. Without a driver, a tensor alone doesn't begin a trace.
static struct thread *writing_thread(void) {
    bool begun = hook_live && atomic_load_explicit(&hook_live->pid, memory_order_relaxed);
    return begun || (hook_live && hook_has_driver()) ? hook_this_thread() : NULL;
}

int gpt_hook_tensor(uint64_t id, const char *name, uint64_t address, uint64_t bytes, uint64_t first,
                    const char *dtype, const uint64_t *shape, uint64_t dims, const char *function,
                    const char *file, uint64_t line) {
    uint64_t now = hook_now();
    int error = errno;
    bool recording = atomic_load_explicit(&hook_recording, memory_order_relaxed);
    struct thread *thread = recording ? writing_thread() : NULL;
    bool done =
        thread && HOOK_WRITE(tensor, .id = id, .at = now, .thread = thread->tid, .name = text_of(name),
                             .address = address, .bytes = bytes, .first = {first != address, first},
                             .dtype = text_of(dtype), .shape = {shape, dims < DIMS ? dims : DIMS},
                             .function = text_of(function), .file = text_of(file), .line = {line != 0, line});
    errno = error;
    return done;
}

void gpt_hook_tensor_end(uint64_t id) {
    uint64_t now = hook_now();
    int error = errno;
    if (writing_thread()) // even if recording is off: the tensor may have been recorded earlier
        HOOK_WRITE(tensor_end, .id = id, .at = now);
    errno = error;
}
