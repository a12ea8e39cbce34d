// The launcher, on a command that may be any file.

#include <setjmp.h>
#include <stdarg.h>

#include "../../runtime/launcher/refuse.c"
#include "harness.h"

static jmp_buf back;

void fail(int status, const char *where, const char *format, ...) {
    (void)status, (void)where, (void)format;
    longjmp(back, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    harness_file(data, size);
    volatile int lowest =
        dup(harness_descriptor); // what `fail` leaves open ends with the process, but not here
    if (!setjmp(back))
        check_command(harness_path);
    close_range((unsigned)lowest, (unsigned)lowest + 8, 0);
    return 0;
}
