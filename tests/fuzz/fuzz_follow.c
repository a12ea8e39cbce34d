// Fuzz segment.c, with which the helper of live streams reads a trace file. The traced process may write
// anything to it.
//
// Input: the number of chunks, what happens between steps; for each chunk the size of its records, then the
// records.

#include "../../runtime/common/selection.c"
#include "../../runtime/follow/rows.c"
#include "../../runtime/follow/segment.c"
#include "harness.h"

#define MOST 3

static char trace[64]; // a name in the current folder, for segment_open follows no link

static void put(int file, const void *data, size_t size, uint64_t at) {
    if (pwrite(file, data, size, (off_t)at) != (ssize_t)size)
        abort();
}

static uint64_t ends[MOST + 1]; // ends of the chunks, from the second entry on

static void put_word(int file, unsigned chunk, uint64_t at, uint32_t word) {
    word = htobe32(word);
    put(file, &word, sizeof(word), ends[chunk] + at);
}

// Whatever the input was, the output can be read.
static void check_stream(int stream) {
    static unsigned char text[16 << 20];
    ssize_t size = pread(stream, text, sizeof(text), 0);
    struct cursor cursor = {text, text + (size > 0 ? size : 0), false};
    while (cursor.at < cursor.end) {
        struct cursor record = cursor;
        if (read_value(&record).type != MAP || !is(read_value(&record), "kind"))
            abort();
        skip_value(&cursor);
        if (cursor.bad)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    if (file < 0) {
        setenv("GPT_HOOK_PROBE", "1", 1); // so that names of kernels are examined
        gpt_selection_setup();
        snprintf(trace, sizeof(trace), "trace-%d", getpid());
        file = open(trace, O_RDWR | O_CREAT | O_EXCL, 0600);
    }
    if (file < 0 || ftruncate(file, 0))
        abort();
    if (size < 2)
        return 0;
    unsigned count = 1 + data[0] % MOST, doing = data[1];
    const uint8_t *at = data + 2, *end = data + size, *records[MOST];
    uint32_t used[MOST] = {0};
    for (unsigned i = 0; i < count; i++) {
        if (end - at >= 2) {
            used[i] = at[0] | (uint32_t)at[1] << 8;
            at += 2;
        }
        used[i] = used[i] < (size_t)(end - at) ? used[i] : (uint32_t)(end - at);
        records[i] = at;
        at += used[i];
        uint32_t size = 4 * CHUNK_PAGE;
        while (size - CHUNK_HEAD - CHUNK_TAIL < used[i] || (i == 1 && size < (doing & 64 ? CHUNK_MAX : 0)))
            size *= 2;
        ends[i + 1] = ends[i] + size;
        if (ftruncate(file, (off_t)ends[i + 1]))
            abort();
        put(file, CHUNK_START, CHUNK_LENGTH, ends[i]);
        put_word(file, i, CHUNK_LENGTH, i == 1 && doing & 128 ? 0 : size - CHUNK_HEAD);
        put(file, records[i], used[i], ends[i] + CHUNK_HEAD);
        put_word(file, i, CHUNK_USED, i && doing & 1 ? 0 : used[i]);
    }
    struct tail tail = {.pid = 1, .ticket = doing & 2 ? UINT64_MAX : ends[count]};
    put(file, &tail, sizeof(tail), ends[1] - CHUNK_TAIL);

    struct segment *segment = segment_open(trace);
    if (!segment)
        return 0;
    struct output output = {.file = memfd_create("stream", 0)};
    enum step step = segment_step(segment, &output, false);
    for (unsigned i = 0; i < count; i++) { // fill in rows, close chunks, and set `used` to anything
        uint64_t closed = 1, word = 77;
        for (size_t j = 0; j < 4 && (doing & 4) && used[i]; j++)
            put(file, &word, sizeof(word), ends[i] + CHUNK_HEAD + ((size_t)doing * 131 + 64 * j) % used[i]);
        put_word(file, i, CHUNK_USED,
                 doing & 8    ? UINT32_MAX - doing
                 : doing & 16 ? (uint32_t)(ends[i + 1] - ends[i] - CHUNK_HEAD - CHUNK_TAIL)
                              : used[i]);
        if (i && doing & 32)
            put(file, &closed, sizeof(closed), ends[i + 1] - CHUNK_TAIL + offsetof(struct tail, closed));
    }
    for (int i = 0; i < 50 && step != STEP_DONE && step != STEP_FAILED; i++)
        step = segment_step(segment, &output, i > 1);
    if (step == STEP_WAIT)
        abort(); // the helper would never end
    segment_close(segment);
    check_stream(output.file);
    close(output.file);
    free(output.bytes.data);
    return 0;
}
