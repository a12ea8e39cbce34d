// A call of a driver function, as handlers see it.

#ifndef GPT_CALL_H
#define GPT_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "suffixes.h"

// Where a row's value is found. An argument, what an argument points to once the call returned well, or
// nothing.
enum { ARG_NONE = 0, ARG_IN = 0x10, ARG_OUT = 0x20, ARG_MASK = 0xf };

// How else arguments are read.
enum special {
    SPECIAL_NONE,
    SPECIAL_LAUNCH, // the arguments of cuLaunchKernel
    SPECIAL_LAUNCH_COOPERATIVE,
    SPECIAL_LAUNCH_EX,  // the configuration of cuLaunchKernelEx
    SPECIAL_LAUNCH_OLD, // function, width and height of the grid, stream: as far as it has them
    SPECIAL_PITCH,      // cuMemAllocPitch
    SPECIAL_COPY_2D,    // CUDA_MEMCPY2D
    SPECIAL_COPY_3D,    // CUDA_MEMCPY3D
    SPECIAL_TIMES_2,    // bytes are two times the value
    SPECIAL_TIMES_4,
    SPECIAL_AREA_1, // bytes are width times height, the arguments 3 and 4, times the size of an item
    SPECIAL_AREA_2,
    SPECIAL_AREA_4,
};

struct frame;
typedef void handler(struct frame *frame);

// A driver function as the program got it: the real one, and what is done beside calling it.
struct slot {
    void *real;
    uint32_t flags;
    uint32_t id;                // of its `api` record
    _Atomic uint32_t announced; // live->pid of the trace that has this record
    uint8_t layout;             // enum layout
    uint8_t special;            // enum special
    uint8_t values[4];          // ARG_*: to, from, bytes, stream; or object, stream
    bool capturable;            // a stream that is captured takes what it does into a graph
    _Atomic uint32_t captured;  // as announced, of the `api` record for calls that were captured
    handler *on_return;         // called when the function returned CUDA_SUCCESS
    const char *symbol;         // as the program asked for it
    const struct known *known;
    int8_t words;     // of stack arguments, an even number; STACK_WORDS where it is not known
    uint8_t query;    // its place in the queries of a thread
    uint16_t on, off; // flags while calls are recorded, and while they are not
    bool claimed;     // by a thread that describes it
    char pad;
};

// The name of a function without version and stream suffix.
#define NAME_BYTES 128
static inline void slot_name(const struct slot *slot, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%s", slot->symbol);
    gpt_cut_suffixes(name);
}

// What a call launches, whichever function it calls.
struct launch {
    uint64_t function, stream;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared; // bytes
    void **params, **extra;
    bool cooperative;
};

// What a stub has on its stack while the real function runs.
struct frame {
    uint64_t args[6];
    uint64_t rax, rdx;
    unsigned char xmm[8][16];
    struct slot *slot;
    struct row *row;
    uint64_t start;
    uint64_t *stack;         // arguments from the seventh on
    struct count *counter;   // of the function that is launched, or of the query
    struct thread *thread;   // that recorded the call
    struct operation *timed; // what the call puts into a stream
    uint64_t note;           // of the handler before the call, for the one after it
    void *real;              // what is called: the real function
    uint64_t answer;
    struct launch launch;
    uint32_t flags; // of the slot, when the call began
    bool probed;    // a launch was made with probes
    bool off;       // nothing was recorded when the call began
    char pad[2];
    const void *outer; // the call in which this one is made, by a signal handler for example
};

static inline uint64_t frame_arg(const struct frame *frame, unsigned index) {
    return index < 6 ? frame->args[index] : frame->stack[index - 6];
}

// For a handler before the call, which may also exchange frame->real. The words of a caller that holds
// arguments belong to the function that is called.
static inline void frame_set_arg(struct frame *frame, unsigned index, uint64_t value) {
    *(index < 6 ? &frame->args[index] : &frame->stack[index - 6]) = value;
}

// The same: the driver is not called, this is what the program gets.
static inline void frame_answer(struct frame *frame, uint64_t result) {
    frame->real = NULL;
    frame->answer = result;
}

static inline uint64_t frame_caller(const struct frame *frame) { return frame->stack[-1]; }

#endif
