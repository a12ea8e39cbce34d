// Walks the stack of a thread. It needs no frame pointers: every library on x86-64 has exception tables
// (.eh_frame, found through .eh_frame_hdr), which say for each address how to find the caller's frame.
//
// We don't use libgcc's unwinder or backtrace(3), because they trust the tables and the stack, and may take
// locks and allocate memory. Here, everything is read through the kernel (memory.c), so a wrong table or a
// corrupt stack does no harm, and libraries are found without locks (_dl_find_object, glibc 2.35). The rule
// for an address is cached in one word, so the next stack with that address needs no table.
//
// A stack ends where there's no table (code generated at run time), where this file doesn't support the rule
// (a signal frame), or where the thread began.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "hook/watch/watch.h"

enum { STEPS = 256, WINDOW = 2048 };

struct object { // struct dl_find_object
    unsigned long long flags;
    uintptr_t start, end;
    void *map;
    uintptr_t table; // .eh_frame_hdr
    unsigned long long reserved[7];
};
static int (*find_object)(void *, struct object *); // NULL: stacks end with their first address
static struct object own;

// Unwind rules for an address, from a library's .eh_frame (found through .eh_frame_hdr).

enum saved_at { UNCHANGED, AT_CFA, AT_RBP, LOST };
struct rule { // how to find the frame's address (CFA) and the caller's registers; distances have 24 bits
    enum { FROM_RSP, FROM_RBP, LOADED_FROM_RBP, NO_CFA } how;
    int32_t distance;
    enum saved_at rbp; // where the caller's rbp is
    int32_t rbp_at;
    bool outermost; // it has no caller
};

// Return the rule for an address from its library's table (0: no table). NO_CFA if there is no rule, or an
// unsupported one.
static struct rule read_rule(uintptr_t table, uint64_t address);

// Pack a rule into one word that isn't 0.
static uint64_t pack(const struct rule *rule) {
    return 1 | (uint64_t)rule->how << 1 | (uint64_t)rule->rbp << 3 | (uint64_t)rule->outermost << 5 |
           ((uint64_t)(uint32_t)rule->distance & 0xffffff) << 8 |
           ((uint64_t)(uint32_t)rule->rbp_at & 0xffffff) << 32;
}

static int32_t extend(uint64_t bits) { return (int32_t)((uint32_t)bits << 8) >> 8; }

static struct rule unpack(uint64_t word) {
    return (struct rule){word >> 1 & 3, extend(word >> 8), word >> 3 & 3, extend(word >> 32), word >> 5 & 1};
}

static struct rule find_rule(uint64_t address) {
    uint64_t key = address | hook_unwind_generation() << 48;
    _Atomic uint64_t *place = hook_find_in_map(&hook_watched->rules, key);
    uint64_t word = place ? atomic_load_explicit(place, memory_order_relaxed) : 0;
    if (word)
        return unpack(word);
    struct object object = {0};
    struct rule rule = {.how = NO_CFA};
    if (!find_object((void *)address, &object))
        rule = read_rule(object.table, address);
    if (place)
        atomic_store_explicit(place, pack(&rule), memory_order_relaxed);
    return rule;
}

// The stack

struct window { // a piece of stack memory
    uintptr_t start, size;
    unsigned char bytes[WINDOW];
};

static bool read_word(struct window *window, uintptr_t address, uint64_t *word) {
    if (address - window->start > window->size - 8 || window->size < 8) {
        size_t rest = 4096 - address % 4096; // bytes left in the page: the next one may not be mapped
        window->start = address;
        window->size = rest < 8 ? 8 : rest < WINDOW ? rest : WINDOW;
        if (!hook_peek((const void *)address, window->bytes, window->size)) {
            window->size = 0;
            return false;
        }
    }
    memcpy(word, window->bytes + (address - window->start), 8);
    return true;
}

struct context {
    uint64_t pc, sp, rbp;
};

// Go to the frame of the caller. Returns false if there's none.
static bool step(struct context *context, struct window *window) {
    struct rule rule = find_rule(context->pc - 1);
    uint64_t cfa = rule.how == FROM_RSP ? context->sp : context->rbp, base = context->rbp;
    cfa += (uint64_t)(int64_t)rule.distance;
    if (rule.how == NO_CFA || rule.outermost ||
        (rule.how == LOADED_FROM_RBP && !read_word(window, cfa, &cfa)))
        return false;
    if (cfa <= context->sp || cfa % 8 || !read_word(window, cfa - 8, &context->pc))
        return false;
    uint64_t at = (rule.rbp == AT_CFA ? cfa : base) + (uint64_t)(int64_t)rule.rbp_at;
    if (rule.rbp != UNCHANGED && (rule.rbp == LOST || !read_word(window, at, &context->rbp)))
        context->rbp = 0; // a rule that needs rbp fails
    context->sp = cfa;
    return context->pc != 0;
}

__attribute__((noinline)) size_t hook_unwind(uint64_t *addresses, size_t most) {
    const uint64_t *frame = __builtin_frame_address(0);
    struct context context = {frame[1], (uint64_t)(frame + 2), frame[0]};
    struct window window = {.size = 0};
    size_t count = 0;
    for (unsigned steps = 0; find_object && steps < STEPS && count < most && step(&context, &window); steps++)
        if (context.pc - own.start >= own.end - own.start)
            addresses[count++] = context.pc;
    return count;
}

void hook_unwind_setup(void) {
    find_object = hook_next_function("_dl_find_object");
    if (find_object && find_object((void *)hook_unwind, &own))
        find_object = NULL;
}

// -- Unwind tables ---------------------------------------------------------
//
// Reads unwind tables: DWARF's call frame instructions, as .eh_frame has them (Linux Standard Base, 10.6).
//
// Tables aren't trusted: they're copied through the kernel (memory.c), and no read passes the end of a copy.
// We support the rules that compilers emit: the frame's address (CFA) is a distance from rsp or rbp, or is
// loaded from a distance from rbp, where a function aligns its stack.

enum { RBP = 6, RSP = 7, RETURN = 16 }; // DWARF's numbers
enum { MOST_BYTES = 4096, MOST_REMEMBERED = 8 };

static bool fits(int64_t number) { return number >= -(1 << 23) && number < 1 << 23; }

// Bytes

struct bytes {
    const unsigned char *at, *end;
    bool bad;
};

static uint64_t read_value(struct bytes *bytes, unsigned size) {
    uint64_t value = 0;
    if ((size_t)(bytes->end - bytes->at) < size) {
        bytes->bad = true;
        return 0;
    }
    memcpy(&value, bytes->at, size);
    bytes->at += size;
    return value;
}

static uint64_t read_leb(struct bytes *bytes, bool is_signed) {
    uint64_t value = 0, byte = 0x80;
    unsigned shift = 0;
    for (; byte & 0x80 && shift < 64; shift += 7)
        value |= ((byte = read_value(bytes, 1)) & 0x7f) << shift;
    if (is_signed && byte & 0x40 && shift < 64)
        value |= ~0ull << shift;
    return value;
}

static int64_t read_scaled(struct bytes *bytes, bool is_signed, int64_t by) {
    return (int64_t)(read_leb(bytes, is_signed) * (uint64_t)by);
}

static void skip(struct bytes *bytes, uint64_t size) {
    if (size > (uint64_t)(bytes->end - bytes->at))
        bytes->bad = true;
    else
        bytes->at += size;
}

static unsigned pointer_size(unsigned encoding) {
    static const unsigned char sizes[8] = {8, 0, 2, 4, 8, 0, 0, 0};
    return sizes[encoding & 7];
}

// Copy a CIE or an FDE: its length and the rest.
static struct bytes copy_entry(uintptr_t from, unsigned char *room, size_t most) {
    uint32_t length = 0;
    bool good = hook_peek((const void *)from, &length, 4) && length >= 4 && length <= most &&
                hook_peek((const void *)(from + 4), room, length);
    return (struct bytes){room, good ? room + length : room, !good};
}

struct common { // a CIE's contents
    uint64_t code;
    int64_t data;
    unsigned encoding;
    bool augmented;
};

static struct common read_common(struct bytes *bytes) {
    struct common common = {0};
    uint64_t zero = read_value(bytes, 4), version = read_value(bytes, 1);
    char text[8] = "";
    for (size_t i = 0; i < sizeof(text); i++)
        if (!(text[i] = (char)read_value(bytes, 1)))
            break;
    bytes->bad |= zero != 0 || (version != 1 && version != 3) || text[7] || (*text && *text != 'z');
    if (bytes->bad)
        return common;
    common.code = read_leb(bytes, false);
    common.data = (int64_t)read_leb(bytes, true);
    uint64_t of_return = version == 1 ? read_value(bytes, 1) : read_leb(bytes, false);
    bytes->bad |= of_return != RETURN;
    common.augmented = *text == 'z';
    uint64_t size = common.augmented ? read_leb(bytes, false) : 0;
    struct bytes more = *bytes;
    skip(bytes, size);
    for (const char *c = text + 1; common.augmented && *c; c++) {
        unsigned encoding = *c == 'S' ? 0 : (unsigned)read_value(&more, 1);
        if (*c == 'R')
            common.encoding = encoding;
        else if (*c == 'P')
            skip(&more, pointer_size(encoding));
    }
    bytes->bad |= more.bad || !pointer_size(common.encoding);
    return common;
}

// Read an expression: DW_OP_breg6, alone or followed by DW_OP_deref.
static bool read_expression(struct bytes *bytes, bool loads, int64_t *distance) {
    uint64_t size = read_leb(bytes, false);
    struct bytes inside = *bytes;
    skip(bytes, size);
    inside.end = bytes->at;
    if (bytes->bad || read_value(&inside, 1) != 0x70 + RBP)
        return false;
    *distance = (int64_t)read_leb(&inside, true);
    return (!loads || read_value(&inside, 1) == 0x06) && !inside.bad && inside.at == inside.end;
}

struct machine {
    struct rule now, first, remembered[MOST_REMEMBERED];
    unsigned depth;
    uint64_t location;
    const struct common *common;
    bool bad;
};

static void set_place(struct machine *machine, uint64_t of, enum saved_at place, int64_t at) {
    if (of == RETURN && (place != AT_CFA || at != -8)) {
        machine->now.outermost = true; // undefined, or saved in an unusual place
    } else if (of == RBP) {
        machine->now.rbp = fits(at) ? place : LOST;
        machine->now.rbp_at = fits(at) ? (int32_t)at : 0;
    }
}

static void set_cfa(struct machine *machine, uint64_t from, int64_t distance) {
    machine->now.how = from == RSP ? FROM_RSP : from == RBP ? FROM_RBP : NO_CFA;
    machine->now.distance = (int32_t)distance;
    machine->bad |= !fits(distance);
}

static uint64_t cfa_register(const struct machine *machine) {
    return machine->now.how == FROM_RBP ? RBP : machine->now.how == FROM_RSP ? RSP : RETURN;
}

static void restore(struct machine *machine, uint64_t of) {
    if (of == RBP)
        machine->now.rbp = machine->first.rbp, machine->now.rbp_at = machine->first.rbp_at;
}

static void run_long(struct machine *machine, struct bytes *bytes, unsigned op) {
    int64_t data = machine->common->data, distance = 0;
    uint64_t of;
    switch (op) {
    case 0x00: // nop
        break;
    case 0x02: // advance_loc1, 2, 4
    case 0x03:
    case 0x04:
        machine->location += read_value(bytes, 1u << (op - 2)) * machine->common->code;
        break;
    case 0x05: // offset_extended
        of = read_leb(bytes, false);
        set_place(machine, of, AT_CFA, read_scaled(bytes, false, data));
        break;
    case 0x06: // restore_extended
        restore(machine, read_leb(bytes, false));
        break;
    case 0x07: // undefined
        set_place(machine, read_leb(bytes, false), LOST, 0);
        break;
    case 0x08: // same_value
        set_place(machine, read_leb(bytes, false), UNCHANGED, 0);
        break;
    case 0x09: // register
        of = read_leb(bytes, false);
        read_leb(bytes, false);
        set_place(machine, of, LOST, 0);
        break;
    case 0x0a: // remember_state
        machine->bad |= machine->depth == MOST_REMEMBERED;
        if (!machine->bad)
            machine->remembered[machine->depth++] = machine->now;
        break;
    case 0x0b: // restore_state
        machine->bad |= !machine->depth;
        if (!machine->bad)
            machine->now = machine->remembered[--machine->depth];
        break;
    case 0x0c: // def_cfa
        of = read_leb(bytes, false);
        set_cfa(machine, of, (int64_t)read_leb(bytes, false));
        break;
    case 0x0d: // def_cfa_register
        set_cfa(machine, read_leb(bytes, false), machine->now.distance);
        break;
    case 0x0e: // def_cfa_offset
        set_cfa(machine, cfa_register(machine), (int64_t)read_leb(bytes, false));
        break;
    case 0x0f: // def_cfa_expression
        machine->now.how =
            read_expression(bytes, true, &distance) && fits(distance) ? LOADED_FROM_RBP : NO_CFA;
        machine->now.distance = (int32_t)distance;
        break;
    case 0x10: // expression
        of = read_leb(bytes, false);
        set_place(machine, of, read_expression(bytes, false, &distance) ? AT_RBP : LOST, distance);
        break;
    case 0x11: // offset_extended_sf
        of = read_leb(bytes, false);
        set_place(machine, of, AT_CFA, read_scaled(bytes, true, data));
        break;
    case 0x12: // def_cfa_sf
        of = read_leb(bytes, false);
        set_cfa(machine, of, read_scaled(bytes, true, data));
        break;
    case 0x13: // def_cfa_offset_sf
        set_cfa(machine, cfa_register(machine), read_scaled(bytes, true, data));
        break;
    case 0x16: // val_expression
        of = read_leb(bytes, false);
        skip(bytes, read_leb(bytes, false));
        set_place(machine, of, LOST, 0);
        break;
    case 0x2e: // GNU_args_size
        read_leb(bytes, false);
        break;
    default:
        machine->bad = true;
    }
}

// Run the instructions from the function's start up to the code at `until`.
static void run_table(struct machine *machine, struct bytes *bytes, uint64_t until) {
    while (!machine->bad && !bytes->bad && bytes->at < bytes->end) {
        unsigned op = (unsigned)read_value(bytes, 1), low = op & 0x3f;
        if (op >> 6 == 1)
            machine->location += low * machine->common->code;
        else if (op >> 6 == 2)
            set_place(machine, low, AT_CFA, read_scaled(bytes, false, machine->common->data));
        else if (op >> 6 == 3)
            restore(machine, low);
        else
            run_long(machine, bytes, op);
        if (machine->location > until)
            return;
    }
    machine->bad |= bytes->bad;
}

// Tables

static bool read_entry(uintptr_t table, uint32_t index, int32_t entry[2]) {
    return hook_peek((const void *)(table + 12 + 8ul * index), entry, 8);
}

// Find the FDE of an address, and the start of its function. Returns 0 if there isn't one.
static uintptr_t find_entry(uintptr_t table, uint64_t address, uint64_t *begin) {
    struct {
        unsigned char version, of_frames, of_count, of_table;
        int32_t frames;
        uint32_t count;
    } head;
    if (!table || !hook_peek((const void *)table, &head, 12) || head.version != 1 || head.of_frames != 0x1b ||
        head.of_count != 0x03 || head.of_table != 0x3b)
        return 0;
    int64_t wanted = (int64_t)(address - table);
    int32_t entry[2];
    uint32_t low = 0, high = head.count;
    while (low < high) { // find the first that begins after it
        uint32_t middle = low + (high - low) / 2;
        if (!read_entry(table, middle, entry))
            return 0;
        if (entry[0] <= wanted)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || !read_entry(table, low - 1, entry))
        return 0;
    *begin = table + (uint64_t)(int64_t)entry[0];
    return table + (uint64_t)(int64_t)entry[1];
}

static struct rule read_rule(uintptr_t table, uint64_t address) {
    static const struct rule none = {.how = NO_CFA};
    unsigned char of_entry[MOST_BYTES], of_common[256];
    uint64_t begin;
    uintptr_t place = find_entry(table, address, &begin);
    struct bytes entry = place ? copy_entry(place, of_entry, sizeof(of_entry)) : (struct bytes){.bad = true};
    if (entry.bad)
        return none;
    struct bytes first = copy_entry(place + 4 - read_value(&entry, 4), of_common, sizeof(of_common));
    struct common common = first.bad ? (struct common){0} : read_common(&first);
    unsigned size = pointer_size(common.encoding);
    read_value(&entry, size); // where the function begins
    uint64_t length = read_value(&entry, size);
    if (common.augmented)
        skip(&entry, read_leb(&entry, false));
    if (first.bad || entry.bad || address - begin >= length)
        return none;
    struct machine machine = {.now.how = NO_CFA, .common = &common};
    run_table(&machine, &first, UINT64_MAX);
    machine.first = machine.now;
    run_table(&machine, &entry, address - begin);
    return machine.bad ? none : machine.now;
}
