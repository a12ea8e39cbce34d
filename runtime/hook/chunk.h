// A trace on disk, as the library writes it and the helper of live streams follows it: chunks of one size,
// each a msgpack record {kind: "chunk", used: ...., data: ....}. gpt-stream(5) says the rest.

#ifndef GPT_CHUNK_H
#define GPT_CHUNK_H

#define CHUNK_SHIFT 19 // log2 of the size of every chunk of a trace, its head included

#ifndef __ASSEMBLER__

#include <stdatomic.h>
#include <stdint.h>

#define CHUNK_SIZE (1u << CHUNK_SHIFT)
#define CHUNK_HEAD 34 // bytes before a chunk's data
#define CHUNK_USED 20 // where the word `used` is
#define CHUNK_TAIL sizeof(struct tail)

// What processes share: it lies at the end of a chunk, in bytes that hold no records. All of it is used in
// the first chunk of a file, `closed` in the others.
struct tail {
    _Atomic uint64_t records; // of the segment
    _Atomic uint64_t pid;     // whose file it is
    _Atomic uint64_t born;    // when that process began, in clock ticks since boot: a pid may come again
    _Atomic uint64_t ticket;  // number of the file's next chunk
    _Atomic uint64_t closed;  // nobody writes to this chunk any more
};

#define ENDED (1ull << 63) // in the ticket: the segment that owns the file has its end

#endif
#endif
