// Compiler logs: a program passes buffers in its options and gets the number of bytes written. This device
// reports only errors about PTX, no information.

#include <stdio.h>
#include <string.h>

#include "sim.h"

__thread char sim_said[sizeof(sim_said)];

void sim_read_jit(struct jit *jit, unsigned count, const int *options, void **values) {
    *jit = (struct jit){0};
    *sim_said = '\0';
    for (unsigned i = 0; options && values && i < count; i++)
        switch (options[i]) {
        case CU_JIT_ERROR_LOG_BUFFER:
            jit->errors.text = values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            jit->errors.size = &values[i];
            jit->errors.room = (uintptr_t)values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER:
            jit->information.text = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            jit->information.size = &values[i];
            jit->information.room = (uintptr_t)values[i];
            break;
        default:
            break;
        }
}

static void write_log(const struct jit_log *log, const char *text) {
    size_t room = (unsigned)log->room, size = 0; // the option has 32 bits
    if (log->text && room) {
        snprintf(log->text, room, "%s", text);
        size = strlen(log->text);
    }
    if (log->size)
        *log->size = (void *)(uintptr_t)size;
}

CUresult sim_log_jit(const struct jit *jit, CUresult status) {
    write_log(&jit->errors, status ? sim_said : "");
    write_log(&jit->information, "");
    return status;
}
