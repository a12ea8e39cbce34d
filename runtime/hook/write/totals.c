// Adds up the traces of a process and of its children for the report. Children wrote their own files, so the
// files are read again. We look only at the heads of records, and for the end of each batch of calls.

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chunk.h"
#include "common/selection.h"
#include "unpack.h"
#include "write.h"

#define AHEAD 512 // bytes that are seen of a value: names are shorter
#define DEPTH 16  // how far children's children are followed
#define FILES (1u << 18)

static struct trace_totals found;

struct trace_file {
    int file;
    uint64_t at, number; // number: counted from 1
    bool bad;
    char path[PATH_MAX];
};

static struct trace_file files[DEPTH]; // not on a stack, which may be small
static ino_t counted[FILES];           // files of one folder, each of which counts once: open addressing
static unsigned char window[(16 << 10) + AHEAD];
static const struct trace_file *shown; // the file whose bytes are in the window
static uint64_t window_start, window_end;

// Return the bytes of the file at this offset, followed by zeros if the file ends there.
static const unsigned char *look(const struct trace_file *trace, uint64_t at) {
    if (shown != trace || at < window_start || at + AHEAD > window_end) {
        ssize_t size = pread(trace->file, window, sizeof(window), (off_t)at);
        size = size > 0 ? size : 0;
        memset(window + size, 0, sizeof(window) - (size_t)size);
        shown = trace;
        window_start = at;
        window_end = at + sizeof(window);
    }
    return window + (at - window_start);
}

// Read the next value of a file. Binary data and texts are skipped, but their first AHEAD bytes are
// available.
static struct value next(struct trace_file *trace) {
    const unsigned char *start = look(trace, trace->at);
    struct cursor cursor = {start, start + AHEAD, false};
    struct value value = read_value(&cursor);
    trace->bad |= cursor.bad && !value.data;
    trace->at += value.data ? (uint64_t)(value.data - start) + value.number : (uint64_t)(cursor.at - start);
    return value;
}

static void pass(struct trace_file *trace, uint64_t end) {
    for (uint64_t left = 1; left && !trace->bad && trace->at < end; left--) {
        struct value value = next(trace);
        if (value.type == ARRAY || value.type == MAP)
            left += value.type == MAP ? 2 * value.number : value.number;
    }
}

// Only the first word of each row is read. It's the start time of a call, which is 0 in an unused row, or the
// count in `launches` and `counts`.
_Static_assert(offsetof(struct row, start) == 0 && offsetof(struct count, count) == 0, "the first word");

struct table {
    uint64_t start, size, stride; // the rows in the file
};

static uint64_t load(const struct trace_file *trace, const struct table *table, uint64_t row) {
    uint64_t value;
    memcpy(&value, look(trace, table->start + row * table->stride), sizeof(value));
    return value;
}

static uint64_t rows_of(const struct table *table) {
    return table->stride < sizeof(uint64_t) ? 0 : table->size / table->stride;
}

// Count the used rows of a batch of calls; they precede the unused ones.
static uint64_t count_calls(const struct trace_file *trace, const struct table *table) {
    uint64_t rows = rows_of(table), low = 0, high = rows;
    if (rows && load(trace, table, rows - 1))
        return rows;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (load(trace, table, middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t add_counts(const struct trace_file *trace, const struct table *table) {
    uint64_t sum = 0;
    for (uint64_t row = 0; row < rows_of(table); row++)
        sum += load(trace, table, row);
    return sum;
}

// Return a number for a function that is unique among all traces.
static uint64_t number_kernel(const struct trace_file *trace, uint64_t function) {
    return trace->number << 32 | (uint32_t)function;
}

// Add the GPU times of kernels.
static void add_times(const struct trace_file *trace, const struct table *table) {
    uint64_t rows = table->stride < sizeof(struct row_gpu) ? 0 : table->size / table->stride;
    for (uint64_t i = 0; i < rows; i++) {
        struct row_gpu row;
        memcpy(&row, look(trace, table->start + i * table->stride), sizeof(row));
        if (row.begin && row.function)
            hook_add_gpu_time(number_kernel(trace, row.function), row.probed, row.duration);
    }
}

// Records

static void count_file(unsigned depth);

// Return whether a file hasn't been counted yet.
static bool is_new(ino_t file) {
    static size_t count;
    for (uint64_t at = file * 0x9e3779b97f4a7c15u >> 40; count < FILES / 2; at++) {
        ino_t *place = &counted[at % FILES];
        if (*place == file)
            return false;
        if (!*place) {
            *place = file;
            count++;
            return true;
        }
    }
    return false;
}

// Add the name of a kernel that the program looked up, unless it's too long, as C++ names can be.
static void add_kernel(struct trace_file *trace, struct value name) {
    static char text[64 << 10];
    if (name.type != TEXT || name.number > sizeof(text) || !gpt_is_selecting())
        return;
    ssize_t size = pread(trace->file, text, name.number, (off_t)(trace->at - name.number));
    if (size == (ssize_t)name.number)
        gpt_add_kernel(text, name.number);
}

// Find the file that a trace names. It must be in the same folder as the trace, because the program could
// have written any name there.
static bool find_neighbour(const struct trace_file *trace, struct value name, char path[PATH_MAX]) {
    const char *slash = strrchr(trace->path, '/');
    size_t folder = slash ? (size_t)(slash + 1 - trace->path) : 0;
    if (name.type != TEXT || name.number >= AHEAD / 2 || memchr(name.data, '/', name.number) ||
        folder + name.number >= PATH_MAX)
        return false;
    memcpy(path, trace->path, folder);
    memcpy(path + folder, name.data, name.number);
    path[folder + name.number] = '\0';
    return true;
}

// Count the trace whose name is in a `child` record.
static void count_child(unsigned depth, struct value name) {
    if (depth + 1 < DEPTH && find_neighbour(&files[depth], name, files[depth + 1].path))
        count_file(depth + 1);
}

// Add the size of the file with the contents of buffers when a `buffer` record first names it. Returns the
// size, or 0 if there's no such file.
static uint64_t add_side_file(const struct trace_file *trace, struct value name) {
    static char path[PATH_MAX];
    struct stat status;
    if (!find_neighbour(trace, name, path) || fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) ||
        !S_ISREG(status.st_mode))
        return 0;
    if (is_new(status.st_ino))
        found.bytes += (uint64_t)status.st_size;
    return (uint64_t)status.st_size;
}

// Count a launch that lost what it saved. A launch's records follow one another.
static void add_loss(const struct trace_file *trace, uint64_t launch, const char *why) {
    static uint64_t last;
    uint64_t number = trace->number << 32 | (uint32_t)launch;
    found.lost += number != last;
    found.why_lost = found.why_lost ? found.why_lost : why;
    last = number;
}

static void count_record(unsigned depth, uint64_t end) {
    struct trace_file *trace = &files[depth];
    struct value map = next(trace), kind_key = next(trace), kind = next(trace);
    bool calls = is(kind, "calls"), counts = is(kind, "counts"), launches = is(kind, "launches");
    bool times = is(kind, "gpu_times"), rows = calls || counts || launches || times;
    uint64_t without = 0, function_id = 0;
    uint64_t size = 0;                                     // for a buffer: the part in this record
    uint64_t launch = 0, offset = 0, packed = 1, room = 0; // and where it is in a file of this size
    bool beside = false;
    char code[AHEAD] = "", detail[AHEAD] = ""; // the window moves
    bool child = is(kind, "child"), unprobed = is(kind, "unprobed"), memusage = is(kind, "memusage"),
         function = is(kind, "function"), buffer = is(kind, "buffer");
    found.probed += is(kind, "probed");
    found.stopped += is(kind, "dropped"); // the hook writes these for no other reason
    if (trace->bad || map.type != MAP || kind_key.type != TEXT) {
        trace->bad = true;
        return;
    }
    struct table table = {0};
    for (uint64_t i = 1; i < map.number && !trace->bad && trace->at < end; i++) {
        struct value key = next(trace);
        if (rows && is(key, "stride")) {
            table.stride = next(trace).number;
        } else if (rows && is(key, "rows")) {
            table.size = next(trace).number;
            table.start = trace->at - table.size;
            if (trace->at > end)
                continue;
            if (times)
                add_times(trace, &table);
            else if (calls)
                found.calls += count_calls(trace, &table);
            else
                *(counts ? &found.calls : &found.launches) += add_counts(trace, &table);
        } else if (unprobed && is(key, "function")) {
            function_id = next(trace).number;
        } else if (unprobed && is(key, "launches")) {
            found.unprobed += without = next(trace).number;
        } else if (unprobed && (is(key, "code") || is(key, "detail"))) {
            bool is_code = is(key, "code");
            struct value text = next(trace);
            size_t size = text.number < AHEAD / 2 ? text.number : AHEAD / 2;
            if (text.type == TEXT)
                snprintf(is_code ? code : detail, AHEAD, "%.*s", (int)size, (const char *)text.data);
        } else if (buffer && (is(key, "size") || is(key, "length"))) {
            size = next(trace).number;
        } else if (buffer && is(key, "launch")) {
            launch = next(trace).number;
        } else if (buffer && is(key, "lost")) {
            const char *why = hook_explain_loss(next(trace));
            if (why)
                add_loss(trace, launch, why);
        } else if (buffer && is(key, "path")) {
            beside = true;
            room = add_side_file(trace, next(trace));
        } else if (buffer && is(key, "offset")) {
            offset = next(trace).number;
        } else if (buffer && is(key, "packed")) {
            packed = next(trace).number;
        } else if (buffer && is(key, "quick")) {
            found.quick += size;
            next(trace);
        } else if (buffer && is(key, "entries")) {
            found.entries += next(trace).number;
            found.logs++;
        } else if (buffer && is(key, "dropped")) {
            found.dropped += next(trace).number;
            found.full++;
        } else if (buffer && is(key, "blocks")) {
            if (next(trace).number != 2) {
                trace->bad = true;
                return;
            }
            uint64_t first = next(trace).number, last = next(trace).number;
            found.first = found.last && found.first < first ? found.first : first;
            found.last = found.last > last + 1 ? found.last : last + 1;
        } else if (memusage && is(key, "launches")) {
            found.needing += next(trace).number;
        } else if (memusage && is(key, "bytes")) {
            found.needed += next(trace).number;
        } else if (memusage && is(key, "most")) {
            uint64_t most = next(trace).number;
            found.most = most > found.most ? most : found.most;
        } else if (function && is(key, "name")) {
            add_kernel(trace, next(trace));
        } else if (child && is(key, "path")) {
            count_child(depth, next(trace));
        } else {
            pass(trace, end);
        }
    }
    if (beside && (room < packed || room - packed < offset))
        add_loss(trace, launch, "the file next to the trace was deleted, replaced or cut");
    if (without)
        hook_add_reason(number_kernel(trace, function_id), code, detail, without);
}

// Count the contents of a chunk, and return the offset where the next one may begin. If nothing was written
// here, that is the end of the hole.
static uint64_t count_chunk(unsigned depth, uint64_t at) {
    struct trace_file *trace = &files[depth];
    _Alignas(uint32_t) unsigned char head[CHUNK_HEAD];
    memcpy(head, look(trace, at), CHUNK_HEAD);
    uint32_t size = chunk_size(head), used;
    if (!size) {
        off_t data = lseek(trace->file, (off_t)at + CHUNK_PAGE, SEEK_DATA);
        return data < 0 ? UINT64_MAX : (uint64_t)data / CHUNK_PAGE * CHUNK_PAGE;
    }
    memcpy(&used, head + CHUNK_USED, sizeof(used));
    uint64_t end = at + CHUNK_HEAD + be32toh(used);
    trace->at = at + CHUNK_HEAD;
    trace->bad = end > at + size;
    while (trace->at < end && !trace->bad)
        if (*look(trace, trace->at))
            count_record(depth, end);
        else
            trace->at++; // padding
    return at + size;
}

// Count the trace whose path is stored for this depth.
static void count_file(unsigned depth) {
    struct trace_file *trace = &files[depth];
    struct stat status;
    trace->file = open(trace->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (trace->file < 0 && !depth)
        found.fault = errno;
    shown = NULL;
    if (trace->file >= 0 && !fstat(trace->file, &status) && S_ISREG(status.st_mode) &&
        is_new(status.st_ino)) {
        trace->number = ++found.processes;
        found.bytes += (uint64_t)status.st_size;
        for (uint64_t at = 0; at < (uint64_t)status.st_size;)
            at = count_chunk(depth, at);
    }
    if (trace->file >= 0)
        close(trace->file);
    shown = NULL;
}

const struct trace_totals *hook_reread(const char *path) {
    snprintf(files[0].path, PATH_MAX, "%s", path);
    count_file(0);
    return &found;
}
