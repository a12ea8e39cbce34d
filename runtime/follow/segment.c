// One trace, read while it is written.
//
// Most records never change once a chunk's `used` counts them: they are passed on as they are. But the rows
// of `calls` and `gpu_times` are filled in later, and those of `launches` and `counts` count up. So a row of
// `calls` is passed on when its call has returned, in a record with its neighbours, one of `gpu_times` when
// it is there, and of counts what was added since. Rows of other kinds wait for the end of the segment.
//
// A reader shall know a function before its calls. The hook writes `api` before the row, so it is enough to
// look the other way round: first at the rows, then at the records, which are written out first.

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

#include "../hook/chunk.h"
#include "../records.h"
#include "follow.h"

#define MAX_CHUNKS 8192          // mapped at one time
#define MAX_ROWS (8u << 20)      // bytes of rows that are gathered in one step
#define MAX_WAITING (256u << 10) // bytes that wait to be written

struct rows { // of one record
    struct rows *next;
    const unsigned char *head; // of the record, up to the length of the rows
    size_t head_size;
    const unsigned char *at;
    uint32_t count, stride, first; // the first that was not passed on
    enum { CALLS, COUNTS, OTHER } way;
    bool at_once; // a row is whole from its start on
    struct place {
        uint32_t offset, size; // bytes; size 0: there is none
    } start, duration, number;
    uint64_t *passed; // of each row: whether, or what count
};

struct chunk {
    struct chunk *next;
    unsigned char *data; // mapped
    uint64_t number;
    uint32_t taken; // bytes of records that were passed on
    struct rows *rows;
    bool foreign; // a process told of itself here after the end
};

struct segment {
    int file;
    uint64_t pid, born, began;
    struct tail *tail;
    struct chunk *chunks;
    uint64_t known; // chunks that were mapped
    unsigned mapped;
    struct bytes rows;
    uint64_t row_records; // in it
    bool ended;
    uint64_t status;
    bool failed; // for want of memory
};

// Output

bool output_put(struct bytes *bytes, const void *data, size_t size) {
    if (bytes->size + size > bytes->room) {
        size_t room = bytes->room ? bytes->room : 64 << 10;
        while (room < bytes->size + size)
            room *= 2;
        unsigned char *more = realloc(bytes->data, room);
        if (!more)
            return false;
        bytes->data = more;
        bytes->room = room;
    }
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return true;
}

bool output_flush(struct output *output) {
    for (size_t done = 0; done < output->bytes.size;) {
        ssize_t size = write(output->file, output->bytes.data + done, output->bytes.size - done);
        if (size < 0 && errno == EAGAIN) // whoever gave us the descriptor wanted it so
            poll(&(struct pollfd){output->file, POLLOUT, 0}, 1, -1);
        else if (size < 0 && errno != EINTR)
            return false;
        if (size > 0)
            done += (size_t)size;
    }
    output->bytes.size = 0;
    return true;
}

// Reading msgpack

struct value {
    enum { UNSIGNED, TEXT, BINARY, ARRAY, MAP, ELSE } type;
    uint64_t number; // its value, the bytes of text, how many are in an array or map
    const unsigned char *data;
};

struct cursor {
    const unsigned char *at, *end;
    bool bad;
};

static uint64_t read_number(struct cursor *cursor, unsigned width) {
    uint64_t number = 0;
    if (width > (size_t)(cursor->end - cursor->at)) {
        cursor->bad = true;
        return 0;
    }
    while (width--)
        number = number << 8 | *cursor->at++;
    return number;
}

// The next value; what is in an array or map follows it.
static struct value read_value(struct cursor *cursor) {
    static const signed char widths[32] = {
        // 0xc0: nil, -, false, true, bin 8 16 32, ext 8 16 32, float 32 64, uint 8 16 32 64
        0, -1, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8,
        // 0xd0: int 8 16 32 64, fixext 1 2 4 8 16, str 8 16 32, array 16 32, map 16 32
        1, 2, 4, 8, 2, 3, 5, 9, 17, 1, 2, 4, 2, 4, 2, 4};
    struct value value = {ELSE, 0, NULL};
    unsigned char type = (unsigned char)read_number(cursor, 1);
    if (type < 0x80)
        return (struct value){UNSIGNED, type, NULL};
    if (type < 0x90)
        return (struct value){MAP, type & 0xf, NULL};
    if (type < 0xa0)
        return (struct value){ARRAY, type & 0xf, NULL};
    if (type >= 0xe0)
        return value;
    uint64_t size = type & 0x1f;
    if (type >= 0xc0) {
        int width = widths[type - 0xc0];
        if (width < 0 || width > 8) {
            cursor->bad |= width < 0;
            read_number(cursor, 8), read_number(cursor, (unsigned)(width - 8));
            return value;
        }
        size = read_number(cursor, (unsigned)width);
    }
    if (type >= 0xcc && type <= 0xcf)
        return (struct value){UNSIGNED, size, NULL};
    if (type >= 0xdc)
        return (struct value){type < 0xde ? ARRAY : MAP, size, NULL};
    bool text = type < 0xc0 || (type >= 0xd9 && type <= 0xdb), binary = type >= 0xc4 && type <= 0xc6;
    if (!text && !binary) {
        if (type >= 0xc7 && type <= 0xc9) // its type and its bytes
            size++;
        else
            return value;
    }
    value = (struct value){text ? TEXT : binary ? BINARY : ELSE, size, cursor->at};
    if (size > (size_t)(cursor->end - cursor->at))
        cursor->bad = true;
    else
        cursor->at += size;
    return value;
}

static void skip_value(struct cursor *cursor) {
    for (uint64_t left = 1; left && !cursor->bad; left--) {
        struct value value = read_value(cursor);
        if (value.type == ARRAY || value.type == MAP)
            left += value.type == MAP ? 2 * value.number : value.number;
    }
}

static bool is(struct value value, const char *text) {
    return value.type == TEXT && value.number == strlen(text) && !memcmp(value.data, text, value.number);
}

// Rows

static uint64_t load(const unsigned char *row, struct place place) {
    switch (place.size) {
    case 8:
        return __atomic_load_n((const uint64_t *)(row + place.offset), __ATOMIC_ACQUIRE);
    case 4:
        return __atomic_load_n((const uint32_t *)(row + place.offset), __ATOMIC_ACQUIRE);
    default:
        return 0;
    }
}

static void read_field(struct cursor *cursor, struct rows *rows) {
    struct value map = read_value(cursor), name = {0}, type = {0}, offset = {0};
    for (uint64_t i = 0; map.type == MAP && i < map.number && !cursor->bad; i++) {
        struct value key = read_value(cursor);
        *(is(key, "name") ? &name : is(key, "type") ? &type : &offset) = read_value(cursor);
    }
    struct place place = {(uint32_t)offset.number, is(type, "u64") ? 8 : is(type, "u32") ? 4 : 0};
    if (is(name, "start"))
        rows->start = place;
    else if (is(name, "begin")) {
        rows->start = place;
        rows->at_once = true;
    } else if (is(name, "duration"))
        rows->duration = place;
    else if (is(name, "count"))
        rows->number = place;
}

static bool lies_in(struct place place, uint32_t stride) {
    return place.size && place.offset % place.size == 0 && place.offset + place.size <= stride;
}

// The rows of a record, if there are any. `body` is behind the head of its map.
static struct rows *find_rows(const unsigned char *start, struct cursor body, uint64_t keys) {
    struct rows found = {.stride = 0};
    struct value rows = {0};
    const unsigned char *value_at = NULL;
    for (uint64_t i = 0; i < keys && !body.bad; i++) {
        struct value key = read_value(&body);
        value_at = body.at;
        if (is(key, "fields")) {
            struct value fields = read_value(&body);
            for (uint64_t j = 0; fields.type == ARRAY && j < fields.number && !body.bad; j++)
                read_field(&body, &found);
        } else if (is(key, "stride"))
            found.stride = (uint32_t)read_value(&body).number;
        else if (is(key, "rows") && i + 1 == keys)
            rows = read_value(&body);
        else
            skip_value(&body);
    }
    if (body.bad || rows.type != BINARY || !found.stride || found.stride % 4)
        return NULL;
    found.head = start;
    found.head_size = (size_t)(value_at - start);
    found.at = rows.data;
    found.count = (uint32_t)(rows.number / found.stride);
    bool aligned = (uintptr_t)rows.data % 8 == 0 && found.stride % 8 == 0;
    if (aligned && lies_in(found.start, found.stride) && lies_in(found.duration, found.stride))
        found.way = CALLS;
    else
        found.way = aligned && lies_in(found.number, found.stride) ? COUNTS : OTHER;
    struct rows *kept = malloc(sizeof(found));
    if (!kept)
        return NULL;
    *kept = found;
    kept->passed = calloc(found.count ? found.count : 1, sizeof(*kept->passed));
    if (kept->passed)
        return kept;
    free(kept);
    return NULL;
}

static const unsigned char *row_at(const struct rows *rows, uint32_t row) {
    return rows->at + (size_t)row * rows->stride;
}

static void begin_rows(struct bytes *bytes, const struct rows *rows, size_t size, bool *failed) {
    unsigned char room[8];
    struct gpt_buffer head = {room, room + sizeof(room), false};
    gpt_put_head(&head, size, 0, 0, 0xc4, 0xc5);
    *failed |=
        !output_put(bytes, rows->head, rows->head_size) || !output_put(bytes, room, (size_t)(head.at - room));
}

enum { PICKED = 512 }; // rows of a record at most

// Rows that are passed on together: their numbers, and what each counts now.
struct picked {
    uint32_t count, row[PICKED];
    uint64_t counts[PICKED];
};

// Whether a call may be passed on: it has ended, or nothing more will be known of it.
static bool is_call_ready(const struct rows *rows, uint32_t row, bool last) {
    return !rows->passed[row] && (last || rows->at_once || load(row_at(rows, row), rows->duration));
}

// Whether a row may be passed on now, which it counts as from then on; of counts that is done once they are
// written.
static bool pick(struct rows *rows, uint32_t row, bool last, uint64_t *count) {
    switch (rows->way) {
    case CALLS:
        return is_call_ready(rows, row, last) && (rows->passed[row] = 1);
    case COUNTS:
        return (*count = load(row_at(rows, row), rows->number)) != rows->passed[row];
    default:
        return last && !rows->passed[row]++;
    }
}

// Picks rows from one on; returns where the next search begins.
static uint32_t pick_rows(struct rows *rows, uint32_t row, bool last, struct picked *picked) {
    for (picked->count = 0; row < rows->count && picked->count < PICKED; row++) {
        if (rows->way == CALLS && !load(row_at(rows, row), rows->start))
            return rows->count; // nor are those after it in use
        if (pick(rows, row, last, &picked->counts[picked->count]))
            picked->row[picked->count++] = row;
    }
    return row;
}

static void put_row(struct bytes *bytes, struct rows *rows, uint32_t row, uint64_t count, bool *failed) {
    *failed |= !output_put(bytes, row_at(rows, row), rows->stride);
    if (rows->way != COUNTS || *failed)
        return;
    uint64_t added = count - rows->passed[row];
    memcpy(bytes->data + bytes->size - rows->stride + rows->number.offset, &added, rows->number.size);
    rows->passed[row] = count;
}

// Adds records with those rows that may be passed on now, if there are any. Returns how many.
static uint64_t take_rows(struct bytes *bytes, struct rows *rows, bool last, bool *failed) {
    uint64_t records = 0;
    struct picked picked;
    for (uint32_t row = rows->first; row < rows->count;) {
        row = pick_rows(rows, row, last, &picked);
        if (!picked.count)
            continue;
        begin_rows(bytes, rows, (size_t)picked.count * rows->stride, failed);
        for (uint32_t i = 0; i < picked.count && !*failed; i++)
            put_row(bytes, rows, picked.row[i], picked.counts[i], failed);
        records++;
    }
    if (rows->way == CALLS)
        while (rows->first < rows->count && rows->passed[rows->first])
            rows->first++;
    return records;
}

static void free_rows(struct rows *rows) {
    free(rows->passed);
    free(rows);
}

// Takes what is ready of a chunk's rows, and forgets records that have no more.
static void take_chunk_rows(struct segment *segment, struct bytes *bytes, struct chunk *chunk, bool last,
                            uint64_t *records) {
    for (struct rows **at = &chunk->rows; *at;) {
        struct rows *rows = *at;
        *records += take_rows(bytes, rows, last, &segment->failed);
        if (last || (rows->way == CALLS && rows->first == rows->count)) {
            *at = rows->next;
            free_rows(rows);
        } else
            at = &rows->next;
    }
}

// Records

// A record without one of its keys: what `path` names in a `child` goes away with the folder.
static bool put_without(struct bytes *bytes, struct cursor body, uint64_t keys, const char *without) {
    size_t start = bytes->size;
    unsigned char head = 0x80;
    bool good = keys < 16 && output_put(bytes, &head, 1);
    for (uint64_t i = 0; i < keys && good; i++) {
        const unsigned char *at = body.at;
        struct value key = read_value(&body);
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
        struct value key = read_value(&body), value = read_value(&body);
        if (is(key, "status"))
            segment->status = value.number;
    }
    segment->ended = true;
}

// Passes on the record at the cursor.
static void take_record(struct segment *segment, struct chunk *chunk, struct cursor *cursor,
                        struct output *output) {
    const unsigned char *start = cursor->at;
    struct value map = read_value(cursor);
    struct cursor body = *cursor;
    struct value key = read_value(cursor), kind = read_value(cursor);
    cursor->at = start;
    skip_value(cursor);
    if (map.type != MAP || !is(key, "kind") || cursor->bad) {
        cursor->bad = true; // the program wrote into its own trace: nothing behind it can be trusted
        return;
    }
    body.end = cursor->at;
    size_t size = (size_t)(cursor->at - start);
    if (is(kind, "header") && chunk->number) {
        chunk->foreign = true;
    } else if (is(kind, "end")) {
        take_end(segment, body, map.number);
    } else if (!is(kind, "child")) {
        struct rows *rows = find_rows(start, body, map.number);
        if (rows) {
            rows->next = chunk->rows;
            chunk->rows = rows;
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
    uint32_t used =
        be32toh(atomic_load_explicit((_Atomic uint32_t *)(chunk->data + CHUNK_USED), memory_order_acquire));
    if (used > CHUNK_SIZE - CHUNK_HEAD - CHUNK_TAIL)
        used = chunk->taken;
    struct cursor cursor = {chunk->data + CHUNK_HEAD + chunk->taken, chunk->data + CHUNK_HEAD + used, false};
    while (cursor.at < cursor.end && !chunk->foreign && !cursor.bad) {
        if (*cursor.at)
            take_record(segment, chunk, &cursor, output);
        else
            cursor.at++; // padding
        if (output->bytes.size > MAX_WAITING && !output_flush(output))
            return false;
    }
    chunk->taken = used;
    return true;
}

// Chunks

static struct tail *tail_of(const struct chunk *chunk) {
    return (void *)(chunk->data + CHUNK_SIZE - CHUNK_TAIL);
}

static unsigned char *map_chunk(int file, uint64_t number) {
    struct stat status;
    off_t at = (off_t)(number * CHUNK_SIZE);
    if (fstat(file, &status) || status.st_size < at + (off_t)CHUNK_SIZE)
        return NULL;
    void *data = mmap(NULL, CHUNK_SIZE, PROT_READ, MAP_SHARED, file, at);
    return data == MAP_FAILED ? NULL : data;
}

// Maps chunks that the process took meanwhile. One that is not allocated yet comes the next time.
static void find_chunks(struct segment *segment) {
    uint64_t count = atomic_load(&segment->tail->ticket) & ~ENDED;
    struct chunk **at = &segment->chunks;
    while (*at)
        at = &(*at)->next;
    while (segment->known < count && segment->mapped < MAX_CHUNKS) {
        struct chunk *chunk = calloc(1, sizeof(*chunk));
        if (!chunk || !(chunk->data = map_chunk(segment->file, segment->known))) {
            free(chunk);
            return;
        }
        chunk->number = segment->known++;
        segment->mapped++;
        *at = chunk;
        at = &chunk->next;
    }
}

static void drop_chunk(struct segment *segment, struct chunk *chunk) {
    while (chunk->rows) {
        struct rows *rows = chunk->rows;
        chunk->rows = rows->next;
        free_rows(rows);
    }
    munmap(chunk->data, CHUNK_SIZE);
    if (chunk->number) // its blocks are of use to others now; the first has the tail
        fallocate(segment->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(chunk->number * CHUNK_SIZE), CHUNK_SIZE);
    segment->mapped--;
    free(chunk);
}

struct segment *segment_open(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    unsigned char *data = file < 0 ? NULL : map_chunk(file, 0);
    struct segment *segment = data ? calloc(1, sizeof(*segment)) : NULL;
    struct chunk *chunk = segment ? calloc(1, sizeof(*chunk)) : NULL;
    if (chunk && atomic_load((_Atomic uint32_t *)(data + CHUNK_USED))) {
        chunk->data = data;
        *segment = (struct segment){.file = file, .chunks = chunk, .known = 1, .mapped = 1};
        segment->tail = tail_of(chunk);
        segment->pid = atomic_load(&segment->tail->pid);
        segment->born = atomic_load(&segment->tail->born);
        struct cursor body = {data + CHUNK_HEAD, data + CHUNK_SIZE, false};
        struct value map = read_value(&body);
        for (uint64_t i = 0; map.type == MAP && i < map.number && !body.bad; i++) {
            if (is(read_value(&body), "monotonic"))
                segment->began = read_value(&body).number;
            else
                skip_value(&body);
        }
        return segment;
    }
    if (data)
        munmap(data, CHUNK_SIZE);
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

uint64_t segment_began(const struct segment *segment) { return segment->began; }

bool segment_lives(const struct segment *segment) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%lu/stat", (unsigned long)segment->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? 0 : read(file, text, sizeof(text) - 1);
    if (file >= 0)
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

// The rest of it: the process, or at least its trace, has come to an end.
static enum step finish(struct segment *segment, struct output *output) {
    uint64_t known;
    do {
        known = segment->known;
        find_chunks(segment);
        for (struct chunk *chunk = segment->chunks; chunk; chunk = chunk->next)
            if (!take_records(segment, chunk, output))
                return STEP_FAILED;
        struct chunk *first = segment->chunks, *next;
        for (struct chunk *chunk = first; chunk; chunk = next) {
            next = chunk->next;
            take_chunk_rows(segment, &output->bytes, chunk, true, &output->records);
            if (output->bytes.size > MAX_WAITING && !output_flush(output))
                return STEP_FAILED;
            if (chunk != first) // which has the tail
                drop_chunk(segment, chunk);
            first->next = chunk != first ? next : first->next;
        }
    } while (segment->known != known);
    if (segment->ended) {
        unsigned char room[64];
        struct gpt_buffer buffer = {room, room + sizeof(room), false};
        gpt_pack_end(&buffer, &(struct gpt_end){.records = output->records, .status = segment->status});
        segment->failed |= !output_put(&output->bytes, room, (size_t)(buffer.at - room));
    }
    errno = ENOMEM;
    return !segment->failed && output_flush(output) ? STEP_DONE : STEP_FAILED;
}

enum step segment_step(struct segment *segment, struct output *output, bool dead) {
    segment->rows.size = segment->row_records = 0;
    bool more = false;
    for (struct chunk **at = &segment->chunks; *at;) {
        struct chunk *chunk = *at;
        bool closed = atomic_load_explicit(&tail_of(chunk)->closed, memory_order_acquire);
        uint32_t used = atomic_load((_Atomic uint32_t *)(chunk->data + CHUNK_USED));
        bool whole = chunk->taken == be32toh(used); // before that, rows of records behind are unknown
        take_chunk_rows(segment, &segment->rows, chunk, closed && whole, &segment->row_records);
        if (closed && whole && chunk->number) {
            *at = chunk->next;
            drop_chunk(segment, chunk);
        } else
            at = &chunk->next;
        if ((more = segment->rows.size > MAX_ROWS))
            break;
    }
    find_chunks(segment);
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
    return dead || segment->ended ? finish(segment, output) : STEP_WAIT;
}
