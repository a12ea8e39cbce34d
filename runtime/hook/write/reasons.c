// Reasons, and texts that stay valid until the process ends.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "write.h"

const struct reason hook_uncounted;
const struct reason hook_reasons[] = {
#define X(code, text, advice) {#code, NULL},
    GPT_REASONS(X)
#undef X
};

const char *hook_keep_text(const char *text) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct entry {
        struct entry *next;
        char text[];
    } *entry;
    pthread_mutex_lock(&lock);
    struct entry *at = entry;
    while (at && strcmp(at->text, text))
        at = at->next;
    if (!at && (at = malloc(sizeof(*at) + strlen(text) + 1))) {
        strcpy(at->text, text);
        at->next = entry;
        entry = at;
    }
    pthread_mutex_unlock(&lock);
    return at ? at->text : NULL;
}

const struct reason *hook_make_reason(const char *code, const char *detail) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct entry {
        struct entry *next;
        struct reason reason;
    } *entry;
    code = hook_keep_text(code), detail = hook_keep_text(detail);
    if (!code || !detail)
        return WHY(no_memory);
    pthread_mutex_lock(&lock);
    struct entry *at = entry;
    while (at && (at->reason.code != code || at->reason.detail != detail))
        at = at->next;
    if (!at && (at = malloc(sizeof(*at)))) {
        *at = (struct entry){entry, {code, *detail ? detail : NULL}};
        entry = at;
    }
    pthread_mutex_unlock(&lock);
    return at ? &at->reason : WHY(no_memory);
}
