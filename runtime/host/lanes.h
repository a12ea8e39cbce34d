// Operations across the lanes of a warp. Each function is called once for all lanes of the mask, with every
// lane's operands.

#ifndef GPT_HOST_LANES_H
#define GPT_HOST_LANES_H

#include "abi.h"

#define EACH_LANE(lane, mask)                                                                                \
    for (uint32_t rest_ = (mask), lane; rest_ && (lane = (uint32_t)__builtin_ctz(rest_), 1);                 \
         rest_ &= rest_ - 1)

static __attribute__((unused)) void host_nothing(void *const data[HOST_WARP], uint32_t mask) {
    (void)data;
    (void)mask;
}

enum { SHUFFLE_up, SHUFFLE_down, SHUFFLE_bfly, SHUFFLE_idx };

struct host_shuffle {
    uint32_t value, lane, clamp, mode, result;
    bool valid;
};

// Written as in the PTX manual. If the source lane doesn't exist, the lane gets its own value.
static __attribute__((unused)) void host_shuffle(void *const data[HOST_WARP], uint32_t mask) {
    EACH_LANE(lane, mask) {
        struct host_shuffle *own = data[lane];
        uint32_t by = own->lane & 31, clamp = own->clamp & 31, segment = own->clamp >> 8 & 31;
        uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment, from = lane;
        if (own->mode == SHUFFLE_up) {
            own->valid = (int32_t)(lane - by) >= (int32_t)last;
            from = lane - by;
        } else {
            from = own->mode == SHUFFLE_down   ? lane + by
                   : own->mode == SHUFFLE_bfly ? lane ^ by
                                               : first | (by & ~segment);
            own->valid = from <= last;
        }
        from = own->valid ? from : lane;
        own->result =
            from < HOST_WARP && mask >> from & 1 ? ((struct host_shuffle *)data[from])->value : own->value;
    }
}

struct host_ballot {
    bool value;
    uint32_t result;
};

static __attribute__((unused)) void host_ballot(void *const data[HOST_WARP], uint32_t mask) {
    uint32_t votes = 0;
    EACH_LANE(lane, mask)
    votes |= (uint32_t)((struct host_ballot *)data[lane])->value << lane;
    EACH_LANE(lane, mask)
    ((struct host_ballot *)data[lane])->result = votes;
}

struct host_match {
    uint64_t value;
    uint32_t same; // lanes with the value of this one
    bool all;
};

static __attribute__((unused)) void host_match(void *const data[HOST_WARP], uint32_t mask) {
    EACH_LANE(lane, mask) {
        struct host_match *own = data[lane];
        own->same = 0;
        EACH_LANE(other, mask)
        own->same |= (uint32_t)(((struct host_match *)data[other])->value == own->value) << other;
        own->all = own->same == mask;
    }
}

struct host_reduce {
    uint32_t value;
};

#define REDUCE(name, type, operation)                                                                        \
    static __attribute__((unused)) void host_##name(void *const data[HOST_WARP], uint32_t mask) {            \
        type all = 0;                                                                                        \
        bool first = true;                                                                                   \
        EACH_LANE(lane, mask) {                                                                              \
            type own = (type)((struct host_reduce *)data[lane])->value;                                      \
            all = first ? own : (operation);                                                                 \
            first = false;                                                                                   \
        }                                                                                                    \
        EACH_LANE(lane, mask)                                                                                \
        ((struct host_reduce *)data[lane])->value = (uint32_t)all;                                           \
    }
REDUCE(add_u32, uint32_t, all + own)
REDUCE(add_s32, int32_t, all + own)
REDUCE(min_u32, uint32_t, own < all ? own : all)
REDUCE(min_s32, int32_t, own < all ? own : all)
REDUCE(max_u32, uint32_t, own > all ? own : all)
REDUCE(max_s32, int32_t, own > all ? own : all)
REDUCE(and_b32, uint32_t, all &own)
REDUCE(or_b32, uint32_t, all | own)
REDUCE(xor_b32, uint32_t, all ^ own)
#undef REDUCE

// ldmatrix, stmatrix, movmatrix: matrices of eight rows of 16 bytes

struct host_matrix {
    unsigned char *row;   // address that this lane gives: a row of matrix lane / 8
    uint32_t count;       // matrices: 1, 2 or 4
    bool transposed;      // lanes hold elements of columns instead of rows
    uint32_t elements[4]; // this lane's part of each matrix: elements 2 * (lane % 4) and the next one of row
                          // lane / 4
};

// Return an element, or `nothing` if the lane that names its row has exited: PTX doesn't define which it is.
static inline uint16_t *host_element(void *const data[HOST_WARP], uint32_t matrix, uint32_t lane,
                                     uint32_t which, bool transposed, uint16_t *nothing) {
    uint32_t row = lane / 4, column = 2 * (lane % 4) + which;
    struct host_matrix *of = data[8 * matrix + (transposed ? column : row)];
    return of && of->row ? (uint16_t *)of->row + (transposed ? row : column) : nothing;
}

static __attribute__((unused)) void host_load_matrix(void *const data[HOST_WARP], uint32_t mask) {
    uint16_t nothing = 0;
    EACH_LANE(lane, mask) {
        struct host_matrix *own = data[lane];
        for (uint32_t i = 0; i < own->count; i++)
            own->elements[i] = *host_element(data, i, lane, 0, own->transposed, &nothing) |
                               (uint32_t)*host_element(data, i, lane, 1, own->transposed, &nothing) << 16;
    }
}

static __attribute__((unused)) void host_store_matrix(void *const data[HOST_WARP], uint32_t mask) {
    uint16_t nothing;
    EACH_LANE(lane, mask) {
        struct host_matrix *own = data[lane];
        for (uint32_t i = 0; i < own->count; i++) {
            *host_element(data, i, lane, 0, own->transposed, &nothing) = (uint16_t)own->elements[i];
            *host_element(data, i, lane, 1, own->transposed, &nothing) = (uint16_t)(own->elements[i] >> 16);
        }
    }
}

// Transpose: column `lane / 4` becomes row `lane / 4`.
static __attribute__((unused)) void host_move_matrix(void *const data[HOST_WARP], uint32_t mask) {
    uint16_t all[8][8] = {0};
    EACH_LANE(lane, mask)
    for (uint32_t which = 0; which < 2; which++)
        all[lane / 4][2 * (lane % 4) + which] =
            (uint16_t)(((struct host_matrix *)data[lane])->elements[0] >> 16 * which);
    EACH_LANE(lane, mask)
    ((struct host_matrix *)data[lane])->elements[0] =
        all[2 * (lane % 4)][lane / 4] | (uint32_t)all[2 * (lane % 4) + 1][lane / 4] << 16;
}

#endif
