// A trace on disk, which the library writes and the helper of live streams reads: chunks, one after the
// other, each a msgpack record {kind: "chunk", used: ...., data: ....}. gpt-stream(5) has the details.

#ifndef GPT_CHUNK_H
#define GPT_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CHUNK_PAGE 4096u       // chunks begin at multiples of it, and consist of whole pages
#define CHUNK_MAX (512u << 10) // most bytes of a chunk
#define CHUNK_HEAD 36          // bytes before a chunk's data
#define CHUNK_USED 20          // offset of the word `used`
#define CHUNK_LENGTH                                                                                         \
    32 // offset of the length of `data`, which is written last: before that, there's no chunk
#define CHUNK_TAIL sizeof(struct tail)

// Texts are encoded longer than necessary, so that both words are aligned.
#define CHUNK_START                                                                                          \
    "\x83\xd9\x04kind\xd9\x05"                                                                               \
    "chunk\xa4used\xce\0\0\0\0\xda\0\x04"                                                                    \
    "data\xc6"

// Return the size of a chunk from its head, or 0 if it isn't a chunk.
static inline uint32_t chunk_size(const unsigned char *head) {
    uint32_t length = __builtin_bswap32(
        atomic_load_explicit((_Atomic uint32_t *)(head + CHUNK_LENGTH), memory_order_acquire));
    bool same =
        !__builtin_memcmp(head, CHUNK_START, CHUNK_USED) &&
        !__builtin_memcmp(head + CHUNK_USED + 4, CHUNK_START + CHUNK_USED + 4, CHUNK_LENGTH - CHUNK_USED - 4);
    uint32_t size = length + CHUNK_HEAD;
    return same && length <= CHUNK_MAX - CHUNK_HEAD && size && size % CHUNK_PAGE == 0 ? size : 0;
}

// State that processes share, at the end of a chunk, in bytes without records. The first chunk of a file uses
// all of it, the others only `closed`.
struct tail {
    _Atomic uint64_t records; // records in the segment
    _Atomic uint64_t pid;     // process that owns the file
    _Atomic uint64_t born;    // when that process began, in clock ticks since boot, since pids are reused
    _Atomic uint64_t run;     // a random number that identifies the run of gpt-hook
    _Atomic uint64_t ticket;  // where the file's next chunk begins; 0: the rest is not filled in yet
    _Atomic uint64_t closed;  // nobody writes to this chunk any more
};

#define ENDED (1ull << 63) // in the ticket: the segment that owns the file has its end

#endif
