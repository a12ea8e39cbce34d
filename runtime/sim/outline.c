// Reads the `outline` record (gpt-stream(5)) that gpt-asm --arch host makes from PTX. It lists the kernels
// with their parameters and memory, and the variables, which is all that's needed when PTX is loaded. Kernels
// are compiled later, when they're launched.
//
// The record may describe hostile PTX or come from a damaged cache. So memory is never allocated for a size
// in the record before that many bytes were read, and invalid entries are skipped.

#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "image.h"
#include "unpack.h"

enum { MOST_ALIGN = 1 << 20, MOST_KEYS = 32 };

// Find the value of a key in the map at a cursor. `inside` is set to the start of the value's contents.
static struct value find(struct cursor map, const char *key, struct cursor *inside) {
    struct value head = read_value(&map);
    for (uint64_t left = head.type == MAP && head.number <= MOST_KEYS ? head.number : 0; left; left--) {
        struct value name = take_value(&map);
        struct cursor at = map;
        struct value value = take_value(&map);
        if (map.bad)
            break;
        if (is(name, key)) {
            if (inside)
                *inside = at;
            return value;
        }
    }
    return (struct value){ELSE, 0, NULL};
}

static uint64_t find_number(struct cursor map, const char *key) { return unsigned_of(find(map, key, NULL)); }

static const char *find_name(struct code *code, struct cursor map, const char *key) {
    struct value name = find(map, key, NULL);
    return name.type == TEXT && name.number ? sim_keep_text(code, (const char *)name.data, name.number)
                                            : NULL;
}

// Iterates over the maps in a key's array.
#define EACH_MAP(item, map, key)                                                                             \
    for (struct cursor item, list_ = {0}, *once_ = &list_; once_; once_ = NULL)                              \
        for (uint64_t left_ = begin_array(map, key, &list_); left_ && next_map(&list_, &item); left_--)

static uint64_t begin_array(struct cursor map, const char *key, struct cursor *list) {
    struct value array = find(map, key, list);
    if (array.type == ARRAY)
        read_value(list);
    return array.type == ARRAY ? array.number : 0;
}

static bool next_map(struct cursor *list, struct cursor *item) {
    *item = *list;
    return take_value(list).type == MAP && !list->bad;
}

static void read_kernel(struct code *code, struct cursor kernel, const char *text, size_t size, int target) {
    struct entry *entry = sim_add_entry(code, find_name(code, kernel, "name"));
    if (!entry)
        return;
    entry->text = text;
    entry->text_size = size;
    size_t index = 0;
    EACH_MAP(param, kernel, "params")
    sim_add_parameter(code, entry, index++, find_number(param, "offset"), find_number(param, "size"));
    uint64_t threads = find_number(kernel, "threads"), registers = find_number(kernel, "registers");
    if (registers)
        sim_set_registers(entry, registers);
    if (threads && threads < (uint64_t)entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
        entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = (int)threads;
    entry->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] =
        target; // the version of the target, not of the PTX language
    sim_set_sizes(entry, find_number(kernel, "shared"), find_number(kernel, "local"));
}

static struct host_address read_address(struct code *code, struct cursor address) {
    return (struct host_address){.offset = find_number(address, "offset"),
                                 .symbol = find_name(code, address, "symbol"),
                                 .addend = (int64_t)find_number(address, "addend"),
                                 .size = (uint8_t)find_number(address, "size"),
                                 .shift = (uint8_t)find_number(address, "shift"),
                                 .generic = find_number(address, "generic") != 0};
}

static void read_variable(struct code *code, struct cursor from) {
    struct value data = find(from, "data", NULL);
    uint64_t size = find_number(from, "size"), align = find_number(from, "align");
    struct variable variable = {.name = find_name(code, from, "name"),
                                .size = size <= SIZE_MAX / 2 ? size : 0,
                                .align = align <= MOST_ALIGN ? align : 0,
                                .constant = is(find(from, "space", NULL), "const")};
    if (data.type == BINARY && data.number <= variable.size)
        variable.initial = data.data, variable.initial_size = data.number;
    size_t count = 0;
    EACH_MAP(counted, from, "addresses")
    count++;
    struct host_address *addresses = count ? (void *)sim_new_block(code, count * sizeof(*addresses)) : NULL;
    EACH_MAP(address, from, "addresses") {
        struct host_address made = read_address(code, address);
        if (addresses && made.symbol)
            addresses[variable.address_count++] = made;
    }
    variable.addresses = addresses;
    sim_add_variable(code, variable);
}

static struct cursor outline_of(const struct code *code) {
    const unsigned char *start = (const unsigned char *)code->outline;
    return (struct cursor){start, start + code->outline_size, false};
}

CUresult sim_read_ptx(struct code *code, const char *text, size_t size) {
    struct gpt_bytes found = {0}, made = {0};
    CUresult status = sim_find_outline(text, size, sim_runs && text == code->text, &found, &made);
    if (status)
        return status;
    // Values of variables stay where they are in the record.
    code->outline = sim_keep_text(code, found.data, found.size);
    code->outline_size = code->outline ? found.size : 0;
    gpt_empty(&found);
    if (!code->outline) {
        gpt_empty(&made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct cursor outline = outline_of(code);
    struct value target = find(outline, "target", NULL);
    bool named = target.type == TEXT && target.number > 3 && !memcmp(target.data, "sm_", 3);
    EACH_MAP(kernel, outline, "kernels")
    read_kernel(code, kernel, text, size, named ? atoi((const char *)target.data + 3) : 0);
    EACH_MAP(variable, outline, "variables")
    read_variable(code, variable);
    if (made.data && text == code->text)
        sim_keep_loaded(code, &made);
    gpt_empty(&made);
    return CUDA_SUCCESS;
}

// Check the first lines: reject PTX versions that don't exist or are too new for us, and an architecture that
// the device doesn't support.
static CUresult check_target(const struct code *code) {
    struct cursor outline = outline_of(code);
    struct value newest = find(outline, "newest", NULL), version = find(outline, "version", NULL);
    struct value target = find(outline, "target", NULL);
    if (newest.type == TEXT && version.type == TEXT) {
        sim_say("PTX: line %u: .version %.*s: the newest that is known here is %.*s",
                (unsigned)find_number(outline, "version_line"), (int)version.number, version.data,
                (int)newest.number, newest.data);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (target.type != TEXT || target.number < 4)
        return CUDA_SUCCESS; // gpt-asm reports missing features
    char suffix = (char)target.data[target.number - 1];
    struct fatbin_element element = {.kind = FATBIN_PTX};
    element.arch = (unsigned short)atoi((const char *)target.data + 3);
    element.flags = suffix == 'a' ? FATBIN_SUFFIX_A : suffix == 'f' ? FATBIN_SUFFIX_F : 0;
    if (!element.arch || sim_suits(&element))
        return CUDA_SUCCESS;
    sim_say("PTX: line %u: .target %.*s: the device is sm_%d%d",
            (unsigned)find_number(outline, "target_line"), (int)target.number, target.data, sim_major,
            sim_minor);
    return CUDA_ERROR_INVALID_PTX;
}

CUresult sim_check_text(struct code *code) {
    if (!code->text || !sim_runs)
        return CUDA_SUCCESS;
    CUresult status = check_target(code);
    if (status || code->entry_count != 1)
        return status ? status : sim_check_all(code);
    LOCKED;
    return sim_make_kernel(code, code->entries);
}
