// The name of a trace, as the user gives it: the launcher checks it, and each process fills in the
// placeholders.

#ifndef GPT_TEMPLATE_H
#define GPT_TEMPLATE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Write the name with %p (pid), %h (host) and %r (RANK) replaced. Before any other character, % is dropped. A
// name that doesn't fit is cut off. Returns the length.
static inline size_t gpt_expand_name(const char *from, char *path, size_t size) {
    size_t at = 0;
    for (; *from && at + 1 < size; from++) {
        char text[65] = {*from};
        if (*from == '%' && from[1]) {
            const char *rank = getenv("RANK");
            switch (*++from) {
            case 'p':
                snprintf(text, sizeof(text), "%d", getpid());
                break;
            case 'h':
                gethostname(text, sizeof(text) - 1);
                break;
            case 'r':
                snprintf(text, sizeof(text), "%s", rank ? rank : "0");
                break;
            default:
                text[0] = *from;
            }
        }
        for (const char *c = text; *c && at + 1 < size; c++)
            path[at++] = *c;
    }
    path[at] = '\0';
    return at;
}

#endif
