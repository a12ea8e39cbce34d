// One trace, read while it is written.
//
// A chunk of the file has a count `used` of its bytes. Once it includes a record, the record doesn't change
// any more, and is passed on as it is. The exception is rows, which are passed on when they're filled in
// (rows.c).
//
// In the stream, a function must be defined (`api`) before the rows of its calls. The hook writes them in
// that order too. So we read rows first and records second, and write the records first: then every row's
// function is among them, or was written earlier.
//
// The program can overwrite its trace at any time, so we copy a record before we parse it. If it truncates
// the file, we read zeros (follow.c).

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/selection.h"
#include "abi/records.h"
#include "follow.h"
#include "hook/write/chunk.h"

#define MAX_CHUNKS 16384         // mapped at once, in all segments
#define MIN_CHUNKS 16            // chunks that each segment may map
#define MAX_ROWS (8u << 20)      // bytes of rows that are gathered in one step
#define MAX_WAITING (256u << 10) // bytes that wait to be written

struct chunk {
    struct chunk *next;
    unsigned char *data; // mapped
    uint64_t at;         // in the file
    uint32_t size;
    uint32_t taken; // bytes of records passed on so far
    struct rows *rows;
    bool over; // ignore the rest: its process began after the end, or it can't be trusted
};

struct segment {
    int file;
    uint64_t pid, born, began;
    struct tail *tail;
    struct chunk *chunks;
    uint64_t known; // bytes of the file whose chunks were mapped
    // Set once its process counts as dead: nothing after it is passed on, even if the process still writes.
    uint64_t end;
    unsigned mapped;
    struct bytes rows;
    uint64_t row_records; // in it
    bool ended;
    uint64_t status;
    bool failed; // out of memory
};

static unsigned all_mapped; // chunks, of all segments

// Output

bool output_flush(struct output *output) {
    for (size_t done = 0; done < output->bytes.size;) {
        ssize_t size = write(output->file, output->bytes.data + done, output->bytes.size - done);
        if (size < 0 && errno == EAGAIN) // the descriptor came to us non-blocking
            poll(&(struct pollfd){output->file, POLLOUT, 0}, 1, -1);
        else if (size < 0 && errno != EINTR)
            return false;
        if (size > 0)
            done += (size_t)size;
    }
    output->flushed += output->bytes.size;
    output->bytes.size = 0;
    return true;
}

// Records

// Write a record without one of its keys: in a `child`, `path` names a file that is removed with the folder.
static bool put_without(struct bytes *bytes, struct cursor body, uint64_t keys, const char *without) {
    size_t start = bytes->size;
    unsigned char head = 0x80;
    bool good = keys < 16 && output_put(bytes, &head, 1);
    for (uint64_t i = 0; i < keys && good; i++) {
        const unsigned char *at = body.at;
        struct value key = take_value(&body);
        skip_value(&body);
        if (body.bad || is(key, without))
            continue;
        good = output_put(bytes, at, (size_t)(body.at - at));
        bytes->data[start]++;
    }
    return good;
}

static void take_end(struct segment *segment, struct cursor body, uint64_t keys) {
    for (uint64_t i = 0; i < keys; i++) {
        struct value key = take_value(&body), value = take_value(&body);
        if (is(key, "status"))
            segment->status = value.number;
    }
    segment->ended = true;
}

// Remember a kernel that the program looked up.
static void note_function(struct cursor body, uint64_t keys) {
    for (uint64_t i = 0; i < keys && !body.bad; i++) {
        struct value key = take_value(&body), value = take_value(&body);
        if (is(key, "name") && value.type == TEXT && !body.bad)
            gpt_add_kernel((const char *)value.data, value.number);
    }
}

// Pass on the record at the cursor; `mapped` is where it is in the file.
static void take_record(struct segment *segment, struct chunk *chunk, struct cursor *cursor,
                        const unsigned char *mapped, struct output *output) {
    const unsigned char *start = cursor->at;
    struct value map = read_value(cursor);
    struct cursor body = *cursor;
    struct value key = read_value(cursor), kind = read_value(cursor);
    cursor->at = start;
    skip_value(cursor);
    if (map.type != MAP || !map.number || !is(key, "kind") || cursor->bad) {
        cursor->bad = true; // the program overwrote its own trace
        return;
    }
    body.end = cursor->at;
    size_t size = (size_t)(cursor->at - start);
    if (is(kind, "function"))
        note_function(body, map.number);
    if (is(kind, "header") && chunk->at) {
        chunk->over = true;
    } else if (is(kind, "end")) {
        take_end(segment, body, map.number);
    } else if (!is(kind, "child")) {
        struct rows *rows = rows_find(start, body, map.number, mapped);
        if (rows) {
            rows_add(&chunk->rows, rows);
            return;
        }
        output->records += !is(kind, "header");
        segment->failed |= !output_put(&output->bytes, start, size);
    } else {
        output->records++;
        segment->failed |= !put_without(&output->bytes, body, map.number, "path");
    }
}

static bool take_records(struct segment *segment, struct chunk *chunk, struct output *output) {
    static unsigned char copy[CHUNK_MAX];
    uint32_t used =
        be32toh(atomic_load_explicit((_Atomic uint32_t *)(chunk->data + CHUNK_USED), memory_order_acquire));
    if (used > chunk->size - CHUNK_HEAD - CHUNK_TAIL || used < chunk->taken)
        return true;
    const unsigned char *mapped = chunk->data + CHUNK_HEAD + chunk->taken;
    memcpy(copy, mapped, used - chunk->taken);
    struct cursor cursor = {copy, copy + used - chunk->taken, false};
    while (cursor.at < cursor.end && !chunk->over && !cursor.bad) {
        if (*cursor.at)
            take_record(segment, chunk, &cursor, mapped + (cursor.at - copy), output);
        else
            cursor.at++; // padding
        if (output->bytes.size > MAX_WAITING && !output_flush(output))
            return false;
    }
    chunk->taken = used;
    chunk->over |= cursor.bad;
    return true;
}

// Chunks

static struct tail *tail_of(const struct chunk *chunk) {
    return (void *)(chunk->data + chunk->size - CHUNK_TAIL);
}

// Map the chunk at an offset of the file. Returns NULL if it isn't there yet.
static struct chunk *map_chunk(int file, uint64_t at) {
    struct stat status;
    _Alignas(8) unsigned char head[CHUNK_HEAD];
    uint32_t size;
    if (pread(file, head, CHUNK_HEAD, (off_t)at) != CHUNK_HEAD || !(size = chunk_size(head)) ||
        fstat(file, &status) || (uint64_t)status.st_size < at + size)
        return NULL;
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, file, (off_t)at);
    struct chunk *chunk = data == MAP_FAILED ? NULL : malloc(sizeof(*chunk));
    if (chunk)
        *chunk = (struct chunk){.data = data, .at = at, .size = size};
    else if (data != MAP_FAILED)
        munmap(data, size);
    return chunk;
}

static uint64_t ticket_of(const struct segment *segment) {
    return atomic_load(&segment->tail->ticket) & ~ENDED;
}

// Set how far the trace of a dead process is read.
static void set_end(struct segment *segment) {
    struct stat status;
    segment->end = ticket_of(segment);
    if (!fstat(segment->file, &status) && (uint64_t)status.st_size < segment->end)
        segment->end = (uint64_t)status.st_size;
}

// Map chunks that the process has reserved since. A chunk that isn't written yet is tried again the next
// time. If the process is `dead`, it'll never be written, so we look for chunks after it.
static void find_chunks(struct segment *segment, bool dead) {
    uint64_t end = segment->end ? segment->end : ticket_of(segment);
    struct chunk **at = &segment->chunks;
    while (*at)
        at = &(*at)->next;
    while (segment->known < end && (segment->mapped < MIN_CHUNKS || all_mapped < MAX_CHUNKS)) {
        struct chunk *chunk = map_chunk(segment->file, segment->known);
        if (!chunk && !dead)
            return;
        if (!chunk) {
            off_t data = lseek(segment->file, (off_t)segment->known + CHUNK_PAGE, SEEK_DATA);
            segment->known = data < 0 ? end : (uint64_t)data / CHUNK_PAGE * CHUNK_PAGE;
            continue;
        }
        segment->known += chunk->size;
        segment->mapped++;
        all_mapped++;
        *at = chunk;
        at = &chunk->next;
    }
}

static void drop_chunk(struct segment *segment, struct chunk *chunk) {
    rows_free(chunk->rows);
    munmap(chunk->data, chunk->size);
    if (chunk->at) // give its blocks back, unless it is the first chunk, which has the tail
        fallocate(segment->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->at, chunk->size);
    segment->mapped--;
    all_mapped--;
    free(chunk);
}

struct segment *segment_open(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct chunk *chunk = file < 0 ? NULL : map_chunk(file, 0);
    struct segment *segment = chunk ? calloc(1, sizeof(*segment)) : NULL;
    if (segment && atomic_load(&tail_of(chunk)->ticket)) {
        *segment = (struct segment){.file = file, .chunks = chunk, .known = chunk->size, .mapped = 1};
        all_mapped++;
        segment->tail = tail_of(chunk);
        segment->pid = atomic_load(&segment->tail->pid);
        segment->born = atomic_load(&segment->tail->born);
        struct cursor body = {chunk->data + CHUNK_HEAD, chunk->data + chunk->size, false};
        struct value map = read_value(&body);
        for (uint64_t i = 0; map.type == MAP && i < map.number && !body.bad; i++) {
            struct value key = take_value(&body), value = take_value(&body);
            if (is(key, "monotonic"))
                segment->began = value.number;
        }
        return segment;
    }
    if (chunk)
        munmap(chunk->data, chunk->size);
    if (file >= 0)
        close(file);
    free(chunk);
    free(segment);
    return NULL;
}

void segment_close(struct segment *segment) {
    while (segment->chunks) {
        struct chunk *chunk = segment->chunks;
        segment->chunks = chunk->next;
        drop_chunk(segment, chunk);
    }
    close(segment->file);
    free(segment->rows.data);
    free(segment);
}

uint64_t segment_pid(const struct segment *segment) { return segment->pid; }

uint64_t segment_began(const struct segment *segment) { return segment->began; }

bool segment_lives(const struct segment *segment) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%lu/stat", (unsigned long)segment->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == EMFILE || errno == ENFILE; // unknown for now
    ssize_t size = read(file, text, sizeof(text) - 1);
    close(file);
    if (size <= 0)
        return false;
    text[size] = '\0';
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || strchr("ZXx", at[2]))
        return false;
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at && (!segment->born || strtoull(at, NULL, 10) == segment->born);
}

// Pass on the rest: the process has ended, or at least its trace has.
static enum step finish(struct segment *segment, struct output *output, bool dead) {
    uint64_t known;
    do {
        known = segment->known;
        find_chunks(segment, dead);
        for (struct chunk *chunk = segment->chunks; chunk; chunk = chunk->next)
            if (!take_records(segment, chunk, output))
                return STEP_FAILED;
        struct chunk *first = segment->chunks, *next;
        for (struct chunk *chunk = first; chunk; chunk = next) {
            next = chunk->next;
            output->records += rows_take(&chunk->rows, &output->bytes, true, &segment->failed);
            if (output->bytes.size > MAX_WAITING && !output_flush(output))
                return STEP_FAILED;
            if (chunk != first) // the first has the tail
                drop_chunk(segment, chunk);
            first->next = chunk != first ? next : first->next;
        }
    } while (segment->known != known);
    if (segment->ended) {
        unsigned char room[64];
        struct gpt_packer buffer = {room, room + sizeof(room), false};
        gpt_pack_end(&buffer, &(struct gpt_end){.records = output->records, .status = segment->status});
        segment->failed |= !output_put(&output->bytes, room, (size_t)(buffer.at - room));
    }
    errno = ENOMEM;
    return !segment->failed && output_flush(output) ? STEP_DONE : STEP_FAILED;
}

enum step segment_step(struct segment *segment, struct output *output, bool dead) {
    segment->rows.size = segment->row_records = 0;
    if (dead && !segment->end)
        set_end(segment);
    bool more = false;
    for (struct chunk **at = &segment->chunks; *at;) {
        struct chunk *chunk = *at;
        bool closed = atomic_load_explicit(&tail_of(chunk)->closed, memory_order_acquire);
        uint32_t used = atomic_load((_Atomic uint32_t *)(chunk->data + CHUNK_USED));
        bool whole = chunk->taken == be32toh(used); // until then, we don't know the rows of later records
        segment->row_records += rows_take(&chunk->rows, &segment->rows, closed && whole, &segment->failed);
        if (closed && whole && chunk->at) {
            *at = chunk->next;
            drop_chunk(segment, chunk);
        } else
            at = &chunk->next;
        if ((more = segment->rows.size > MAX_ROWS))
            break;
    }
    find_chunks(segment, false);
    for (struct chunk *chunk = segment->chunks; chunk; chunk = chunk->next)
        if (!take_records(segment, chunk, output))
            return STEP_FAILED;
    segment->failed |= !output_put(&output->bytes, segment->rows.data, segment->rows.size);
    output->records += segment->row_records;
    if (segment->failed) {
        errno = ENOMEM;
        return STEP_FAILED;
    }
    if (more)
        return STEP_MORE;
    return dead || segment->ended ? finish(segment, output, dead) : STEP_WAIT;
}
