// The interface between the stubs, in assembler, and C.

#ifndef GPT_STUB_H
#define GPT_STUB_H

#include "arch_hook.h"

#define SLOTS 4096
#define SLOT_SHIFT 6 // a slot is 64 bytes
#define SLOT_REAL 0
#define SLOT_FLAGS 8
#define SLOT_QUERY_INDEX 57
#define SLOT_WATCHED 1  // the stub calls hook_enter and hook_leave
#define SLOT_RECORDED 2 // each call is a row
#define SLOT_COUNTED 4  // even if it isn't watched: a launch by its function, a query by its own name
#define SLOT_SECOND 8   // a launch whose function is the second argument
#define SLOT_QUERY 16
#define SLOT_SCALAR 32      // no argument and no result is in a vector register
#define SLOT_TIMED 64       // its work in a stream is timed on the GPU
#define SLOT_SYNC 128       // waits for the GPU: afterwards, timed work has probably ended
#define SLOT_LEAN 256       // a call is a row of time and result, and nothing else
#define SLOT_BEFORE 512     // it has a handler before the call
#define SLOT_AFTER 1024     // it has a handler after any call
#define SLOT_UNCOUNTED 2048 // a launch, also of a graph, while nothing is recorded
#define SLOT_STACK 4096     // record the caller's stack
#define SLOT_PYTHON 8192    // and its Python frames
#define SLOT_REPLAY 16384   // launches a graph whose nodes may be timed
#define SLOT_ID 12
#define SLOT_ANNOUNCED 16
#define ROW_START 0
#define ROW_DURATION 8
#define ROW_API 16
#define ROW_RESULT 20
#define ROW_SIZE 24
#define LIVE_PID 0
#define THREAD_PID 0
#define THREAD_CHUNK 8
#define THREAD_NEXT 24 // next row in the batch of plain rows
#define THREAD_END 32
#define THREAD_EARLIER 144
#define THREAD_QUERIES 208
#define THREAD_COUNTERS 496
#define THREAD_COUNTERS_MASK 504
#define COUNTER_KEY 0
#define COUNTER_ROW 8
#define COUNTER_CURRENT 16
#define COUNTER_GENERATION 24
#define COUNTER_BITS 5 // it is 32 bytes
#define KEY_FACTOR 0x9e3779b97f4a7c15
#define KEY_SHIFT 40

#define FRAME_RESULT 0
#define FRAME_REGISTERS 8
#define FRAME_SLOT (FRAME_REGISTERS + ARCH_REGISTERS_SIZE)
#define FRAME_REAL (FRAME_SLOT + 64)
#define FRAME_ANSWER (FRAME_SLOT + 72)
#define FRAME_SIZE ((FRAME_SLOT + 176 + 15) & ~15)
#define STACK_WORDS 32 // copied for a function whose number of arguments is not known

#ifndef __ASSEMBLER__

#include "hook/watch/watch.h"
#include "hook/write/write.h"

enum {
    HOOK_NAMES = 0 // slots of functions that have a symbol here
#define X(name, suffix, since, words) +1
#include "abi/driver.h"
};

extern struct slot hook_slots[SLOTS];
uint64_t
hook_enter(struct frame *frame); // returns how many words of stack arguments the real function may need
void hook_leave(struct frame *frame);
uint64_t hook_resolve_slot(struct slot *slot); // returns whether the stub has to look at the call again

void *hook_stub_of(const struct slot *slot); // NULL in a build without stubs
bool hook_is_stub(const void *address);
CUresult hook_missing(void); // what a slot holds if no driver has the function

// The rest is in runtime/arch, or missing in a build for a processor without stubs.
#define IF_STUBS __attribute__((weak, visibility("hidden")))
extern IF_STUBS const char hook_stubs[], hook_stubs_end[]; // ARCH_STUB_SIZE bytes each
IF_STUBS void hook_resolve(void);     // what an unresolved slot holds in place of the real function
IF_STUBS void hook_give_answer(void); // called instead of the real function if a handler has answered
IF_STUBS void hook_dlsym_here(void);  // dlsym, as the program calls it

_Static_assert(sizeof(struct row) == ROW_SIZE && offsetof(struct row, duration) == ROW_DURATION &&
                   offsetof(struct row, api) == ROW_API && offsetof(struct row, result) == ROW_RESULT,
               "as the stub has it");
_Static_assert(sizeof(struct slot) == 1 << SLOT_SHIFT, "slots are indexed by the stub");
_Static_assert(offsetof(struct slot, query) == SLOT_QUERY_INDEX && offsetof(struct slot, id) == SLOT_ID &&
                   offsetof(struct slot, announced) == SLOT_ANNOUNCED,
               "as the stub has it");
_Static_assert(sizeof(struct frame) == FRAME_SIZE, "the stub's size");
_Static_assert(offsetof(struct frame, slot) == FRAME_SLOT && offsetof(struct frame, result) == FRAME_RESULT &&
                   offsetof(struct frame, registers) == FRAME_REGISTERS &&
                   sizeof(struct arch_registers) == ARCH_REGISTERS_SIZE,
               "as the stub has it");
_Static_assert(offsetof(struct frame, real) == FRAME_REAL && offsetof(struct frame, answer) == FRAME_ANSWER,
               "as the stub has it");
_Static_assert(offsetof(struct live, pid) == LIVE_PID && offsetof(struct thread, pid) == THREAD_PID &&
                   offsetof(struct thread, chunk) == THREAD_CHUNK &&
                   offsetof(struct thread, earlier) == THREAD_EARLIER &&
                   offsetof(struct thread, queries) == THREAD_QUERIES &&
                   offsetof(struct thread, counters) == THREAD_COUNTERS &&
                   offsetof(struct thread, counters_mask) == THREAD_COUNTERS_MASK &&
                   offsetof(struct thread, batches[LAYOUT_PLAIN].next) == THREAD_NEXT &&
                   offsetof(struct thread, batches[LAYOUT_PLAIN].end) == THREAD_END,
               "as the stub has it");
_Static_assert(offsetof(struct counter, key) == COUNTER_KEY && offsetof(struct counter, row) == COUNTER_ROW &&
                   offsetof(struct counter, reference.current) == COUNTER_CURRENT &&
                   offsetof(struct counter, reference.generation) == COUNTER_GENERATION &&
                   sizeof(struct counter) == 1 << COUNTER_BITS && offsetof(struct count, count) == 0 &&
                   KEY_FACTOR == COUNTER_FACTOR && KEY_SHIFT == COUNTER_SHIFT,
               "as the stub has it");

#endif

#endif
