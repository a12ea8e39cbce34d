// Messages of all C code: each is one line on standard error, whatever names are in it. Characters that could
// move the cursor, hide text or reorder it, and bytes that aren't UTF-8, are written as `\x1b`.
// gpt/base/printable.py does the same for Python.

#ifndef GPT_SAY_H
#define GPT_SAY_H

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

// The bytes of the character that a text begins with, 0 if it begins with none that may be shown.
static inline size_t gpt_shown(const unsigned char *text) {
    if (*text < 0x80)
        return *text >= ' ' && *text != 0x7f;
    size_t size = *text >= 0xf0 ? 4 : *text >= 0xe0 ? 3 : 2;
    if (*text < 0xc2 || *text > 0xf4)
        return 0;
    uint32_t code = *text & (0xff >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    static const uint32_t first[] = {0, 0, 0xa1, 0x800, 0x10000};
    static const uint32_t hidden[][2] = {
        {0xad, 0xad},     {0x61c, 0x61c},     {0x180e, 0x180e},      {0x2000, 0x200f}, {0x2028, 0x202f},
        {0x205f, 0x206f}, {0x3000, 0x3000},   {0xd800, 0xf8ff},      {0xfeff, 0xfeff}, {0xfff9, 0xfffb},
        {0xffff, 0xffff}, {0xe0000, 0xe007f}, {0xf0000, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(hidden) / sizeof(*hidden); i++)
        if (code >= hidden[i][0] && code <= hidden[i][1])
            return 0;
    return code >= first[size] ? size : 0;
}

// Write a message and a line feed in one piece. It's cut to the size that a pipe writes atomically, so
// messages of several processes don't mix.
static inline void gpt_write_line(const char *text) {
    static const char digits[] = "0123456789abcdef";
    char line[PIPE_BUF];
    size_t size = 0;
    while (*text && size < sizeof(line) - 8) {
        size_t shown = gpt_shown((const unsigned char *)text);
        if (shown) {
            while (shown--)
                line[size++] = *text++;
            continue;
        }
        unsigned char byte = (unsigned char)*text++;
        line[size++] = '\\';
        line[size++] = 'x';
        line[size++] = digits[byte >> 4];
        line[size++] = digits[byte & 15];
    }
    line[size++] = '\n';
    int before = errno;
    sigset_t caused, mask; // if there is no reader, or the file may not grow, a signal comes with the error
    sigemptyset(&caused);
    sigaddset(&caused, SIGPIPE);
    sigaddset(&caused, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &caused, &mask);
    if (write(STDERR_FILENO, line, size) < 0 && (errno == EPIPE || errno == EFBIG))
        sigtimedwait(&caused, NULL, &(struct timespec){0});
    sigprocmask(SIG_SETMASK, &mask, NULL);
    errno = before;
}

#endif
