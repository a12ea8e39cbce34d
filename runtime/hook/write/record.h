// Records: into the chunk of the thread.

#ifndef GPT_RECORD_H
#define GPT_RECORD_H

#include <string.h>

#include "calm.h"
#include "records.h"
#include "thread.h"

extern TLS bool hook_writing; // a record: a signal handler that comes now writes none
// Room for a record: in the thread's chunk, if that had none in the next one, then in one of the largest.
enum { TRIES = 3 };
bool hook_open(struct gpt_packer *buffer, int try);
bool hook_close(struct gpt_packer *buffer); // what was packed is in the trace
// After a record whose last value is not bytes: makes them `size` bytes, aligned, that stay as they are,
// zero. Returns where they begin, or NULL if they do not fit.
unsigned char *hook_grow_rows(struct gpt_packer *buffer, unsigned char *start, size_t size);

// Writes a record: HOOK_WRITE(child, .pid = 1, ...). Returns false if nothing is recorded.
#define HOOK_WRITE(kind, ...)                                                                                \
    ({                                                                                                       \
        const struct gpt_##kind record_ = {__VA_ARGS__};                                                     \
        struct gpt_packer buffer_;                                                                           \
        HOOK_CALM;                                                                                           \
        bool done_ = false, nested_ = hook_writing;                                                          \
        hook_writing = true;                                                                                 \
        for (int try_ = nested_ ? TRIES : 0; try_ < TRIES && !done_ && hook_open(&buffer_, try_); try_++)    \
            done_ = gpt_pack_##kind(&buffer_, &record_) && hook_close(&buffer_);                             \
        hook_writing = nested_;                                                                              \
        done_;                                                                                               \
    })

static inline struct gpt_str hook_str(const char *text) {
    return (struct gpt_str){text, text ? strlen(text) : 0};
}

#endif
