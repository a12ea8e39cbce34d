// Reads how much memory the probes' buffers needed from a trace that was recorded with --memusage. A memusage
// record names its kernel by the id of a function record, and a trace may have either one first. Anybody may
// have written the trace: whatever doesn't make sense is ignored.

#include "common/needs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unpack.h"

enum { MOST = 1 << 30 }; // bytes of a trace

struct keys {
    struct value kind, id, name, function, most, used, data;
};

static struct keys read_keys(struct cursor *cursor) {
    struct value map = read_value(cursor), none = {ELSE, 0, NULL};
    struct keys keys = {none, none, none, none, none, none, none};
    cursor->bad |= map.type != MAP;
    for (uint64_t i = 0; i < map.number && !cursor->bad; i++) {
        struct value key = take_value(cursor), value = take_value(cursor);
        if (cursor->bad) // the key may go beyond the end of the trace
            break;
        struct value *to = is(key, "kind")       ? &keys.kind
                           : is(key, "id")       ? &keys.id
                           : is(key, "name")     ? &keys.name
                           : is(key, "function") ? &keys.function
                           : is(key, "most")     ? &keys.most
                           : is(key, "used")     ? &keys.used
                           : is(key, "data")     ? &keys.data
                                                 : NULL;
        if (to)
            *to = value;
    }
    return keys;
}

struct use { // by function
    uint64_t function, most;
    struct value name;
};

static int by_function(const void *one, const void *other) {
    const struct use *a = one, *b = other;
    return a->function < b->function ? -1 : a->function > b->function;
}

static int by_kernel(const void *one, const void *other) {
    const struct gpt_need *a = one, *b = other;
    size_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->kernel, b->kernel, shorter);
    return order ? order : a->length < b->length ? -1 : a->length > b->length;
}

struct uses {
    struct use *all;
    size_t count, room;
    uint64_t segment; // ids are unique within a segment
};

static bool add_use(struct uses *uses, uint64_t function, uint64_t most, struct value name) {
    if (uses->count == uses->room) {
        size_t room = 2 * uses->room + 64;
        struct use *more = realloc(uses->all, room * sizeof(*more));
        if (!more)
            return false;
        uses->all = more;
        uses->room = room;
    }
    uses->all[uses->count++] = (struct use){uses->segment << 32 | (function & UINT32_MAX), most, name};
    return true;
}

// Find the records that matter, also in chunks. Returns false without memory.
static bool find_uses(struct cursor cursor, struct uses *uses, bool inside) {
    while (cursor.at < cursor.end) {
        if (!*cursor.at) { // padding
            cursor.at++;
            continue;
        }
        struct keys keys = read_keys(&cursor);
        if (cursor.bad) // the trace is cut off
            break;
        uses->segment += is(keys.kind, "header");
        if (is(keys.kind, "chunk") && !inside && keys.data.type == BINARY) {
            uint64_t used =
                unsigned_of(keys.used) < keys.data.number ? unsigned_of(keys.used) : keys.data.number;
            if (!find_uses((struct cursor){keys.data.data, keys.data.data + used, false}, uses, true))
                return false;
        } else if (is(keys.kind, "function") && keys.id.type == UNSIGNED && keys.name.type == TEXT) {
            if (!add_use(uses, keys.id.number, 0, keys.name))
                return false;
        } else if (is(keys.kind, "memusage") && keys.function.type == UNSIGNED) {
            if (!add_use(uses, keys.function.number, unsigned_of(keys.most), keys.name))
                return false;
        }
    }
    return true;
}

// Join the records of each function, and then the functions of each kernel.
static bool join(struct use *uses, size_t count, struct gpt_needs *needs) {
    if (!(needs->all = calloc(count + 1, sizeof(*needs->all))))
        return false;
    if (count) // without records, there's no array
        qsort(uses, count, sizeof(*uses), by_function);
    size_t found = 0;
    for (size_t i = 0; i < count;) {
        struct use one = uses[i];
        for (; i < count && uses[i].function == one.function; i++) {
            one.most = uses[i].most > one.most ? uses[i].most : one.most;
            one.name = uses[i].name.type == TEXT ? uses[i].name : one.name;
        }
        if (one.most && one.name.type == TEXT)
            needs->all[found++] = (struct gpt_need){(const char *)one.name.data, one.name.number, one.most};
    }
    qsort(needs->all, found, sizeof(*needs->all), by_kernel);
    for (size_t i = 0; i < found; i++) {
        struct gpt_need *last = needs->count ? &needs->all[needs->count - 1] : NULL;
        if (!last || by_kernel(last, &needs->all[i]))
            needs->all[needs->count++] = needs->all[i];
        else if (needs->all[i].most > last->most)
            last->most = needs->all[i].most;
    }
    return true;
}

// Keep only the names of kernels, because a trace may have up to MOST bytes.
static bool keep_names(struct gpt_needs *needs) {
    size_t size = 1;
    for (size_t i = 0; i < needs->count; i++)
        size += needs->all[i].length;
    char *names = malloc(size), *at = names;
    if (!names)
        return false;
    for (size_t i = 0; i < needs->count; i++) {
        struct gpt_need *need = &needs->all[i];
        need->kernel = memcpy(at, need->kernel, need->length);
        at += need->length;
    }
    free(needs->data);
    needs->data = names;
    return true;
}

static const char *read_file(int file, size_t *size, char **data) {
    struct stat status;
    if (fstat(file, &status))
        return "cannot be read";
    if (!S_ISREG(status.st_mode))
        return "is not a regular file";
    if (status.st_size > MOST)
        return "is larger than 1 GiB";
    if (!(*data = malloc((size_t)status.st_size + 1)))
        return "is too large for the memory";
    ssize_t got = 1;
    for (*size = 0; *size < (size_t)status.st_size && got > 0; *size += got > 0 ? (size_t)got : 0)
        do
            got = read(file, *data + *size, (size_t)status.st_size - *size);
        while (got < 0 && errno == EINTR);
    return got < 0 ? "cannot be read" : NULL;
}

const char *gpt_read_needs(const char *path, struct gpt_needs *needs) {
    *needs = (struct gpt_needs){0};
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return errno == ENOENT ? "does not exist" : "cannot be opened";
    size_t size = 0;
    const char *fault = read_file(file, &size, &needs->data);
    close(file);
    struct uses uses = {0};
    const unsigned char *begin = (const unsigned char *)needs->data;
    if (!fault && (!find_uses((struct cursor){begin, begin + size, false}, &uses, false) ||
                   !join(uses.all, uses.count, needs) || !keep_names(needs)))
        fault = "is too large for the memory";
    free(uses.all);
    return fault;
}

uint64_t gpt_find_need(const struct gpt_needs *needs, const char *kernel) {
    struct gpt_need wanted = {kernel, strlen(kernel), 0};
    const struct gpt_need *found =
        needs->count ? bsearch(&wanted, needs->all, needs->count, sizeof(wanted), by_kernel) : NULL;
    return found ? found->most : 0;
}
