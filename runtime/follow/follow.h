// gpt-hook -o -, -o FIFO, -o '|command': a helper process that follows the traces of a private folder and
// writes them as one stream while they grow.
//
//   follow.c   the helper: which processes there are, whose trace comes next, when the run is over
//   segment.c  one trace, read while it is written
//   rows.c     the rows of its records, which are filled in later

#ifndef GPT_FOLLOW_H
#define GPT_FOLLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../unpack.h"

// follow.c

struct follow {
    const char *folder;  // absolute; the helper removes it when it ends
    int file;            // the folder, open: in a shared TMPDIR somebody could replace it with a link
    const char *where;   // the output's name, for messages
    int output;          // where the stream goes
    int lock;            // a lock on the folder, held while the helper lives; -1: none
    bool ends_with_root; // end with the command, even if it leaves processes behind
    bool quiet;          // no warning for a stream without records
    char **argv;         // the command that is watched
};

// Start the helper, which is not a child of this process. Returns false with errno set.
bool follow_start(const struct follow *follow);

struct bytes { // waiting to be written
    unsigned char *data;
    size_t size, room;
};

struct output {
    int file;
    struct bytes bytes;
    uint64_t flushed; // bytes
    uint64_t records; // in the segment
};

bool output_flush(struct output *output); // false with errno set: the reader is gone, or writing failed

// rows.c

bool output_put(struct bytes *bytes, const void *data, size_t size); // false: no memory

struct rows;

// The rows of a record, NULL if it has none. `body` begins after the head of its map of `keys` keys; `mapped`
// is where the record is in the file, which keeps changing.
struct rows *rows_find(const unsigned char *record, struct cursor body, uint64_t keys,
                       const unsigned char *mapped);
void rows_add(struct rows **list, struct rows *rows);
void rows_free(struct rows *list);

// Add records with the rows that may be passed on now, or every row if this is the `last` time, and forget
// records without further rows. Returns how many records it added.
uint64_t rows_take(struct rows **list, struct bytes *bytes, bool last, bool *failed);

// segment.c

struct segment;

// The trace in a file, NULL while it has no header yet.
struct segment *segment_open(const char *path);
void segment_close(struct segment *segment);
uint64_t segment_pid(const struct segment *segment);
uint64_t segment_began(const struct segment *segment); // CLOCK_MONOTONIC, ns
bool segment_lives(const struct segment *segment);     // its process is there

enum step { STEP_WAIT, STEP_MORE, STEP_DONE, STEP_FAILED };

// Pass on the trace's new records. `dead` means that its process had ended before this call.
enum step segment_step(struct segment *segment, struct output *output, bool dead);

#endif
