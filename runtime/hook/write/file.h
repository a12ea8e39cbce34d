// The file of a trace and its chunks.

#ifndef GPT_FILE_H
#define GPT_FILE_H

#include <stdint.h>
#include <sys/stat.h>

#include "chunk.h"
#include "records.h"
#include "thread.h"

// A chunk, and what lies in it.
static inline struct tail *mapped_tail(struct mapped chunk) {
    return (struct tail *)(chunk.start + chunk.size - CHUNK_TAIL);
}

static inline struct gpt_packer mapped_room(struct mapped chunk, uint32_t used) {
    return (struct gpt_packer){chunk.start + CHUNK_HEAD + used, chunk.start + chunk.size - CHUNK_TAIL, false};
}

void hook_set_used(unsigned char *chunk, uint32_t used);

// Bytes of chunks.
uint32_t hook_chunk_size(unsigned step); // of those of 4 KiB on that grow
uint32_t hook_chunk_for(size_t bytes); // the smallest with room for so many bytes of records, or the largest
uint32_t hook_chunk_after(uint32_t size); // the next larger one, or the largest

// Takes a chunk at the end of the file, for ever. `flag` is ENDED for the last one.
struct mapped hook_new_chunk(uint32_t size, uint64_t flag);

// The same at a place in a file that may be another one; errno is set if it is none.
struct mapped hook_make_chunk(int file, uint64_t at, uint32_t size);
struct tail *hook_map_tail(int file, uint32_t size); // of its first chunk

bool hook_may_grow(uint64_t size); // RLIMIT_FSIZE lets a file: trying brings a signal; errno is set if not

int hook_open_file(const char *path); // a trace that is there: to read and to write
void hook_keep_file(int file, const struct stat *found);
void hook_close_file(void);
bool hook_is_unread(void); // a live stream: its helper was killed, and nothing more is recorded
int hook_keep_apart(void); // of a thread that will have descriptors of its own; -1: there is none

#endif
