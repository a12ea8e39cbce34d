// How gpt-hook ends if it can't become the command: one line, and the exit status from gpt(7).

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "../say.h"
#include "launcher.h"

void fail(int status, const char *where, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char line[2 * PATH_MAX];
    int size = snprintf(line, sizeof(line), "gpt-hook: error: %s%s", where ? where : "", where ? ": " : "");
    if (size < (int)sizeof(line))
        vsnprintf(line + size, sizeof(line) - (size_t)size, format, args);
    gpt_write_line(line);
    va_end(args);
    exit(status);
}
