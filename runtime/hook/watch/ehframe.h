// What the unwind tables of a library (.eh_frame, found by .eh_frame_hdr) say of an address.

#ifndef GPT_EHFRAME_H
#define GPT_EHFRAME_H

#include <stdbool.h>
#include <stdint.h>

enum saved_at { UNCHANGED, AT_CFA, AT_RBP, LOST };
struct rule { // how the frame's address (CFA) is found, and what the caller has; distances have 24 bits
    enum { FROM_RSP, FROM_RBP, LOADED_FROM_RBP, NO_CFA } how;
    int32_t distance;
    enum saved_at rbp; // where the caller's is
    int32_t rbp_at;
    bool outermost; // nobody called it
};

// That of an address, from the table of its library, 0 for none: NO_CFA if it has no rule, or another one.
struct rule hook_read_rule(uintptr_t table, uint64_t address);

#endif
