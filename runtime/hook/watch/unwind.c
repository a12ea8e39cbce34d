// Walks a stack by the tables that exceptions are unwound by (.eh_frame, found by .eh_frame_hdr), which every
// library on x86-64 has, with frame pointers or without.
//
// Neither libgcc's unwinder nor backtrace(3) is used: both believe what they read, may take locks and
// allocate. Here nothing is read but through the kernel (peek.c), so neither a wrong table nor an odd stack
// can do harm; the library of an address is looked for without locks (_dl_find_object, glibc 2.35). What an
// address asks for is remembered in one word, so that later stacks take a look at a table and a window of
// stack memory.
//
// A stack ends where there is no table, as in code that was made at run time, where a rule is one that
// ehframe.c does not know, as in a signal's frame, and at the beginning of a thread.

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "watch.h"

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
static _Atomic uint64_t generation; // of what is loaded

// Rules

// In one word that is not 0.
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
        rule = hook_read_rule(object.table, address);
    if (place)
        atomic_store_explicit(place, pack(&rule), memory_order_relaxed);
    return rule;
}

// The stack

struct window { // of it
    uintptr_t start, size;
    unsigned char bytes[WINDOW];
};

static bool read_word(struct window *window, uintptr_t address, uint64_t *word) {
    if (address - window->start > window->size - 8 || window->size < 8) {
        size_t rest = 4096 - address % 4096; // of the page: the next may not be there
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

// To the caller.
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
        context->rbp = 0; // a rule that needs it fails
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

uint64_t hook_unwind_generation(void) { return atomic_load_explicit(&generation, memory_order_relaxed); }

void hook_forget_unwound(void) { atomic_fetch_add(&generation, 1); }
