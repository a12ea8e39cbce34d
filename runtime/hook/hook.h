// What the files of libgpthook.so share. The way of a call:
//
//   stub_x86_64.S  the program calls a stub; a quiet one jumps on, others call hook_enter and hook_leave
//   calls.c        those two: a row of the trace for each call
//   rows.c         layouts of rows, batches of them
//   counts.c       how often each kernel was launched, and each query made that is not recorded
//   decode.c       what is known of each driver function: its type, where its arguments are, who handles it
//   intercept.c    how the program came to hold a stub: symbols, dlsym, cuGetProcAddress
//   scopes.c       libraries that find the driver first: RTLD_DEEPBIND, dlmopen
//   setup.c        how the library is set up
//   libc.c         functions of libc that it defines
//   modules.c      handlers: what was loaded and looked up, what was launched
//   objects.c      what that is: which handle stands for what, until it is gone
//   contexts.c     handlers: contexts
//   missing.c      what they say of GPU code that is not there
//   save.c         images of modules, kept in files
//   graphs.c       the kernels of a graph
//   streamops.c    what goes into streams, and when it has ended
//   gputime.c      when what was launched ran on the GPU
//   ioctl.c        what the driver asks the kernel for
//   nvtx.c         ranges and marks of the program
//   watched.c      what is known of the process
//   driver.c       the driver's library
//   libs.c         the shared libraries of the process, the devices
//   linker.c       what the dynamic linker loaded, and its symbols
//   maps.c         what is mapped, as the kernel says it
//   bus.c          its mappings, and who truncates them
//   exits.c        how a process ends
//   trace.c        the file: chunks, one writing thread each

#ifndef GPT_HOOK_H
#define GPT_HOOK_H

// Shared with the assembler.
#define SLOTS 4096
#define HOOK_NAMES 635 // in names.h
#define SLOT_SHIFT 6   // a slot is 64 bytes
#define SLOT_REAL 0
#define SLOT_FLAGS 8
#define SLOT_QUERY_INDEX 57
#define MAX_QUERIES 32  // that one process can count
#define SLOT_WATCHED 1  // the stub calls hook_enter and hook_leave
#define SLOT_RECORDED 2 // each call is a row
#define SLOT_COUNTED                                                                                         \
    4 // counted whether it is watched or not: a launch, by its function, or a query, by itself
#define SLOT_SECOND 8 // a launch whose function is the second argument
#define SLOT_QUERY 16
#define SLOT_SCALAR 32  // no argument and no result is in a vector register
#define SLOT_TIMED 64   // what it puts into a stream is timed on the GPU
#define SLOT_SYNC 128   // waits for the GPU: when it returns, what was timed has probably ended
#define SLOT_LEAN 256   // a call is a row of time and result, and nothing else
#define SLOT_BEFORE 512 // it has a handler before the call
#define SLOT_AFTER 1024 // and one after any call
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
#define THREAD_NEXT 24 // of the batch of plain rows
#define THREAD_END 32
#define THREAD_EARLIER 144
#define THREAD_QUERIES 208
#define EARLIER 4 // chunks of a thread that stay mapped beside the one that it writes

#define FRAME_SIZE 352
#define FRAME_ARGS 0
#define FRAME_RAX 48
#define FRAME_RDX 56
#define FRAME_XMM 64
#define FRAME_SLOT 192
#define FRAME_STACK 216
#define FRAME_REAL 256
#define FRAME_ANSWER 264
#define STACK_WORDS 32 // copied for a function whose number of arguments is not known

#ifndef __ASSEMBLER__

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "calm.h"
#include "chunk.h"
#include "objects.h"
#include "records.h"
#include "suffixes.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORT __attribute__((visibility("default")))
#define TLS __thread __attribute__((tls_model("initial-exec")))

// Rows of a trace, by what they tell beside time and result. hook_rows (calls.c) declares them to readers.
enum layout { LAYOUT_PLAIN, LAYOUT_OBJECT, LAYOUT_MEMORY, LAYOUT_LAUNCH, LAYOUT_GPU, LAYOUTS };

struct row {
    _Atomic uint64_t start;    // 0: not used; stored last
    _Atomic uint64_t duration; // 0: has not returned; stored last of what is known then
    uint32_t api;
    int32_t result;
};
_Static_assert(sizeof(struct row) == ROW_SIZE && offsetof(struct row, duration) == ROW_DURATION &&
                   offsetof(struct row, api) == ROW_API && offsetof(struct row, result) == ROW_RESULT,
               "as the stub has it");

struct row_object {
    struct row row;
    uint64_t object, stream;
};

struct row_memory {
    struct row row;
    uint64_t to, from, bytes, stream;
};

struct row_launch {
    struct row row;
    uint64_t stream;
    uint32_t function, shared, grid[3];
    uint16_t block[3];
    uint8_t cluster[3], cooperative;
    uint16_t pad;
};

struct row_gpu {            // of a `gpu_times` record
    _Atomic uint64_t begin; // 0: not used; stored last
    uint64_t duration, call, stream;
    uint32_t api, function, thread, pad;
};

// Where a row's value is found. An argument, what an argument points to once the call returned well, or
// nothing.
enum { ARG_NONE = 0, ARG_IN = 0x10, ARG_OUT = 0x20, ARG_MASK = 0xf };

// How else arguments are read.
enum special {
    SPECIAL_NONE,
    SPECIAL_LAUNCH, // the arguments of cuLaunchKernel
    SPECIAL_LAUNCH_COOPERATIVE,
    SPECIAL_LAUNCH_EX, // the configuration of cuLaunchKernelEx
    SPECIAL_PITCH,     // cuMemAllocPitch
    SPECIAL_COPY_2D,   // CUDA_MEMCPY2D
    SPECIAL_COPY_3D,   // CUDA_MEMCPY3D
    SPECIAL_TIMES_2,   // bytes are two times the value
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
    handler *on_return;         // called when the function returned CUDA_SUCCESS
    const char *symbol;         // as the program asked for it
    const struct known *known;
    int8_t words;  // of stack arguments, an even number; STACK_WORDS where it is not known
    uint8_t query; // its place in the queries of a thread
    char pad[6];
};
_Static_assert(sizeof(struct slot) == 1 << SLOT_SHIFT, "slots are indexed by the stub");
_Static_assert(offsetof(struct slot, query) == SLOT_QUERY_INDEX && offsetof(struct slot, id) == SLOT_ID &&
                   offsetof(struct slot, announced) == SLOT_ANNOUNCED,
               "as the stub has it");

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

// Of launches: a build that has them (tests/runtime/test_handlers.py has) looks at every one.
extern handler hook_before_launch __attribute__((weak, visibility("hidden")));
extern handler hook_after_launch __attribute__((weak, visibility("hidden")));

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
};
_Static_assert(sizeof(struct frame) == FRAME_SIZE, "as the stub has it");
_Static_assert(offsetof(struct frame, slot) == FRAME_SLOT && offsetof(struct frame, rax) == FRAME_RAX,
               "as the stub has it");
_Static_assert(offsetof(struct frame, xmm) == FRAME_XMM && offsetof(struct frame, stack) == FRAME_STACK,
               "as the stub has it");
_Static_assert(offsetof(struct frame, real) == FRAME_REAL && offsetof(struct frame, answer) == FRAME_ANSWER,
               "as the stub has it");

static inline uint64_t frame_arg(const struct frame *frame, unsigned index) {
    return index < 6 ? frame->args[index] : frame->stack[index - 6];
}

// For a handler before the call, which may also exchange frame->real. The words of a caller that holds
// arguments belong to the function that is called.
static inline void frame_set_arg(struct frame *frame, unsigned index, uint64_t value) {
    *(index < 6 ? &frame->args[index] : &frame->stack[index - 6]) = value;
}

void hook_give_answer(void); // in the stub: stands for the real function

// The same: the driver is not called, this is what the program gets.
static inline void frame_answer(struct frame *frame, uint64_t result) {
    frame->real = (void *)hook_give_answer;
    frame->answer = result;
}

static inline bool frame_is_answered(const struct frame *frame) {
    return frame->real == (void *)hook_give_answer;
}

static inline uint64_t frame_caller(const struct frame *frame) { return frame->stack[-1]; }

// stub_x86_64.S, intercept.c, calls.c
extern struct slot hook_slots[SLOTS];
extern const char hook_stubs[], hook_stubs_end[];
uint64_t
hook_enter(struct frame *frame); // gives how many words of stack arguments the real function may need
void hook_leave(struct frame *frame);

// trace.c. What concerns one process lives in memory that is zero again in a forked child: it has no trace,
// no ids, no state until it begins its own.

#define MAX_MAPPINGS 16384
#define MAX_COUNT_CHUNKS 64

struct live {
    _Atomic uint32_t pid;   // of the process while its trace is on, else 0
    _Atomic uint32_t state; // see trace.c
    _Atomic uint32_t pool_lock;
    struct tail *tail;
    char path[4096];
    struct thread *pool;                               // of threads that are gone
    struct count *_Atomic counts[2][MAX_COUNT_CHUNKS]; // of launches, of queries: rows, by chunk
    _Atomic uint32_t count_rows[2];                    // that are given out
    struct {
        unsigned char *_Atomic start;
        _Atomic size_t size;
    } mappings[MAX_MAPPINGS]; // of the file
};
extern struct live *hook_live;

// Rows of one layout inside the chunk. A signal handler may make calls too, between any two instructions of a
// call: a row is taken by one instruction, and where it is not below `end` then, it is none. Who is
// interrupted right there by a handler that begins a batch may take its row for one of that: so there is one
// more behind `end`.
struct batch {
    unsigned char *next, *end;
    uint32_t rows; // of the batch after it
};

static inline unsigned char *hook_take(struct batch *batch, size_t stride) {
#ifdef __x86_64__
    __asm__("xaddq %0, %1" : "+r"(stride), "+m"(batch->next) : : "cc");
    return (unsigned char *)stride;
#else
    unsigned char *row = batch->next;
    batch->next += stride;
    return row;
#endif
}

// How often a thread launched a function or made a query, and when first: a row of a `launches` or `counts`
// record, in a chunk that stays mapped. Only the thread writes it.
struct count {
    _Atomic uint64_t count, first;
    uint32_t id, pad; // of the function, of the api
};

struct counter {                // of a thread's table: open addressing
    uint64_t key;               // the function's handle, the address of the query's slot
    struct count *row;          // of the function that had the handle when this was made
    struct reference reference; // to that
};

struct mapped { // a chunk; all zero if there is none
    unsigned char *start;
    size_t size;
};

struct thread {
    uint32_t pid, tid; // pid is that of struct live, else this is the state of another process
    struct mapped chunk;
    struct batch batches[LAYOUTS];
    struct mapped earlier[EARLIER];     // the newest first: calls in flight have rows there
    struct count *queries[MAX_QUERIES]; // by slot->query; the first stands for none
    struct mapped spare;                // the next chunk, if it was made before it is needed
    const struct row *in_flight;        // the innermost call when the chunk before this one was full
    uint32_t used;                      // bytes of the chunk's data
    struct counter *counters;
    uint32_t counters_size, counters_used; // the size is a power of two, or 0
    struct stream_queue *timelines;
    struct thread *next; // in the pool
};

_Static_assert(offsetof(struct live, pid) == LIVE_PID && offsetof(struct thread, pid) == THREAD_PID &&
                   offsetof(struct thread, chunk) == THREAD_CHUNK &&
                   offsetof(struct thread, earlier) == THREAD_EARLIER &&
                   offsetof(struct thread, queries) == THREAD_QUERIES &&
                   offsetof(struct thread, batches[LAYOUT_PLAIN].next) == THREAD_NEXT &&
                   offsetof(struct thread, batches[LAYOUT_PLAIN].end) == THREAD_END,
               "as the stub has it");

extern TLS struct thread *hook_thread;
extern TLS bool hook_in_vfork;          // this thread is a vfork child, in its parent's memory
struct thread *hook_begin_thread(void); // the slow way of hook_this_thread

// Whose chunk to write; NULL where nothing is recorded.
static inline struct thread *hook_this_thread(void) {
    struct thread *thread = hook_thread;
    if (LIKELY(thread && thread->pid == atomic_load_explicit(&hook_live->pid, memory_order_relaxed)))
        return thread;
    return hook_begin_thread();
}

bool hook_trace_setup(void (*more)(void)); // writes what else belongs to the beginning and the end
void *hook_process_memory(size_t size);    // zero, and zero again in a forked child; NULL where there is none
void hook_finish(unsigned status);         // ends the trace; what comes later is not recorded
void hook_fail(const char *where, int error); // turns the hook off and says so
void hook_turn_off(const char *where, const char *fact);
const char *hook_describe_error(int error);
void hook_say(const char *where, const char *fact, const char *consequence);
extern TLS bool hook_writing; // a record: a signal handler that comes now writes none
// Room for a record: in the thread's chunk, if that had none in the next one, then in one of the largest.
enum { TRIES = 3 };
bool hook_open(struct gpt_buffer *buffer, int try);
bool hook_close(struct gpt_buffer *buffer); // what was packed is in the trace
// After a record whose last value is not bytes: makes them `size` bytes, aligned, that stay as they are,
// zero. Gives where they begin, or NULL where they do not fit.
unsigned char *hook_grow_rows(struct gpt_buffer *buffer, unsigned char *start, size_t size);
struct mapped hook_new_chunk(uint32_t size); // for ever
uint32_t hook_chunk_size(unsigned step);     // of those of 4 KiB on that grow
void hook_make_spare(struct thread *thread); // in a call that takes its time anyway
void hook_set_used(unsigned char *chunk, uint32_t used);

// Writes a record: HOOK_WRITE(child, .pid = 1, ...). Gives false where nothing is recorded.
#define HOOK_WRITE(kind, ...)                                                                                \
    ({                                                                                                       \
        const struct gpt_##kind record_ = {__VA_ARGS__};                                                     \
        struct gpt_buffer buffer_;                                                                           \
        HOOK_CALM;                                                                                           \
        bool done_ = false, nested_ = hook_writing;                                                          \
        hook_writing = true;                                                                                 \
        for (int try_ = nested_ ? TRIES : 0; try_ < TRIES && !done_ && hook_open(&buffer_, try_); try_++)    \
            done_ = gpt_pack_##kind(&buffer_, &record_) && hook_close(&buffer_);                             \
        hook_writing = nested_;                                                                              \
        done_;                                                                                               \
    })

static inline struct gpt_str hook_str(const char *text) {
    return (struct gpt_str){text, text ? strlen(text) : 0};
}

// clock.c: time stamps, ticks of the time stamp counter where it is fit for that, else CLOCK_MONOTONIC.
extern bool hook_has_tsc;
void hook_clock_setup(void);
uint64_t hook_monotonic(void);
uint64_t hook_tsc_hz(void); // 0: stamps are ns

static inline uint64_t hook_now(void) {
    return LIKELY(hook_has_tsc) ? __builtin_ia32_rdtsc() : hook_monotonic();
}

// counts.c
// The row that a thread counts a key in: the handle of a function that is launched, the address of a query's
// slot. NULL if it has none, or that of an object that is gone.
struct count *hook_find_counter(const struct thread *thread, uint64_t key);
struct count *hook_add_counter(struct thread *thread, uint64_t key, bool query, uint32_t id,
                               struct reference reference); // or NULL
void hook_count(struct count *row, uint64_t now);
uint32_t hook_newest_launch(void); // the function that was launched for the first time last, or 0

// graphs.c
extern handler hook_on_instantiate, hook_on_exec_update, hook_on_graph, hook_on_captured, hook_on_node;

// gputime.c
extern bool hook_gpu_time;
void hook_gpu_begin(struct frame *frame);
void hook_gpu_end(struct frame *frame, bool done);
void hook_gpu_read(struct thread *thread);

// rows.c
struct row_layout {
    const struct gpt_field *items;
    size_t count, stride; // fields, bytes of a row
};
extern const struct row_layout hook_layouts[LAYOUTS];
bool hook_new_batch(struct thread *thread, enum layout layout);

// A row that nobody has, or NULL.
static inline unsigned char *hook_take_row(struct thread *thread, enum layout layout) {
    struct batch *batch = &thread->batches[layout];
    unsigned char *row = hook_take(batch, hook_layouts[layout].stride);
    if (LIKELY(row < batch->end))
        return row;
    if (!hook_new_batch(thread, layout))
        return NULL;
    row = hook_take(batch, hook_layouts[layout].stride);
    return row < batch->end ? row : NULL;
}

struct row_gpu *hook_new_gpu_row(struct thread *thread);
const struct row *hook_call_in_flight(const struct thread *thread); // the innermost, or NULL

// decode.c
struct known {
    const char *name; // without version and stream suffix
    const char *type, *op;
    uint8_t layout, special, values[4];
    // They run whether or not the call is recorded, or anything is.
    handler *before;    // may change the arguments and the function, or answer in place of the driver
    handler *on_return; // after a call that returned CUDA_SUCCESS
    handler *after;     // after any call
    bool v2;            // the function of this name without suffix is an older one with other arguments
};
void hook_describe(struct slot *slot, const char *symbol); // fills in all but the real function
void hook_describe_named(struct slot *slot);               // if nobody did
void hook_decode_setup(void);                              // reads GPT_HOOK_CALLS
void hook_announce(struct slot *slot);                     // writes its `api` record
const char *hook_type(const struct slot *slot);
struct slot *hook_named_slot(const char *symbol); // of a function in names.h, or NULL
bool hook_is_old(const char *name);               // whether the function without suffix is an older one

// setup.c
bool hook_setup(void);

// libc.c: the functions of libc behind those that this library defines. All are found when it is set up, or
// before, if a sanitizer or another library calls one earlier: dlsym takes a lock, which a program may hold
// while it waits for the thread that calls.
extern void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
extern int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
extern void (*(*hook_real_signal)(int, void (*)(int)))(int);
extern void (*hook_real_quick_exit)(int);
void hook_find_real(void);

// driver.c
bool hook_has_driver(void); // whether it is loaded
bool hook_driver_is_simulated(void);
void *hook_driver_function(const char *symbol); // the real one, or NULL
bool hook_in_driver(const void *address);
// The exported name of the function at an address, of several the first that is an entry point of the API;
// NULL if there is none.
const char *hook_driver_symbol(const void *address);
void hook_forget_driver(void); // if it was closed

// intercept.c
void *hook_wrap(void *real, const char *symbol); // the stub that stands for a function of the driver
extern handler hook_on_get_proc_address;

// scopes.c
void hook_see_namespaces(void); // says that a driver is in one of dlmopen

// watched.c: what is known of this process, in such memory too.
#define MAP_ENTRIES (1u << 18)
#define MAX_LIBRARIES 4096
#define MAX_SEGMENTS 4
#define MAX_DEVICES 64
#define PATH_BYTES (512u << 10)

struct map { // open addressing; keys are never 0 and never removed
    _Atomic uint64_t keys[MAP_ENTRIES];
    _Atomic uint64_t values[MAP_ENTRIES];
};

struct library {
    struct {
        uint64_t start, end, offset; // addresses, and where the first of them is in the file
    } segments[MAX_SEGMENTS];
    unsigned count;
    const char *path;
    const char *replaces;  // the path that the program knows, where it is another one
    uint64_t mapping;      // a digest of where it begins
    uint64_t end, dynamic; // of all segments; of its dynamic section
};

struct watched {
    _Atomic uint32_t modules, functions;    // ids that were given
    struct stream_queue *_Atomic timelines; // of --gpu-time
    _Atomic uint64_t devices;               // bits of those that have a record
    _Atomic uint32_t libraries;
    _Atomic bool unmapped; // some may have been closed since they were looked for
    _Atomic uint32_t scanning;
    uint64_t linked; // a digest of the list of the dynamic linker at the last scan
    uint32_t paths_used;
    struct library library[MAX_LIBRARIES];
    char paths[PATH_BYTES];
    struct objects objects;
    _Atomic uint64_t primary[MAX_DEVICES]; // contexts of the devices
    _Atomic bool unseen;                   // it was told of libraries whose calls are not, see scopes.c
    struct map missing;                    // what was told of, see missing.c
    _Atomic uint32_t said;
};
extern struct watched *hook_watched;
bool hook_watched_setup(void);

// modules.c
extern handler hook_on_module_image, hook_on_module_file, hook_on_library_module, hook_on_function,
    hook_on_kernel, hook_on_kernel_function, hook_on_enumerate_functions, hook_on_enumerate_kernels,
    hook_on_variable_of_1, hook_on_variable_of_2, hook_on_function_attribute, hook_on_kernel_attribute,
    hook_on_function_cache, hook_on_kernel_cache, hook_on_function_shared, hook_before_gone, hook_on_gone;
int hook_ask_parameters(uint64_t handle);
uint32_t hook_new_id(_Atomic uint32_t *ids);
uint32_t
hook_ask_function(uint64_t handle); // the id of a function, after asking the driver for its name; or 0

// contexts.c
uint64_t hook_current_context(void); // of this thread, or 0
extern handler hook_on_context_retained, hook_on_context_made, hook_on_context_destroyed,
    hook_on_context_reset, hook_on_context_released, hook_before_context_gone;

// missing.c
void hook_on_failure(struct frame *frame);

// libs.c
void hook_scan_libraries(void);
void hook_before_close(const void *handle);
void hook_after_close(void);
bool hook_peek(const void *from, void *into, size_t size); // memory that the program may have given back
bool hook_peek_text(const char *from, char *into, size_t size);
bool hook_is_readable(const void *start, size_t size); // all of it
const char *hook_find_library(const void *address);    // whose code or data it is in, or NULL
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size);
void hook_see_device(int device); // writes its record

// bus.c
unsigned char *hook_map(int file, size_t size, off_t at); // may be written whatever becomes of the file
void hook_unmap(unsigned char *start, size_t size);
void hook_bus_setup(void);
extern _Atomic bool hook_bus_installed; // the handler of SIGBUS is ours
int hook_bus_exchange(const struct sigaction *action,
                      struct sigaction *before); // what sigaction is to the program then
extern int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *); // set by hook_find_real

// exits.c
void hook_exits_setup(void);

// report.c
void hook_report_setup(void);
void hook_report(void); // in the root process: one line about what was written

// save.c
void hook_save_setup(void);
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]);

// ioctl.c
void hook_ioctl_setup(void);
extern bool hook_ioctl_wanted;
int hook_record_ioctl(int (*real)(int, unsigned long, ...), int file, unsigned long request, void *argument);

// nvtx.c
int hook_nvtx_begin(const void *(*get_table)(uint32_t)); // gives whether ranges are recorded

// linker.c
#define MAX_LINKED 8192 // libraries that are looked at: a list that changes may have no end
struct linked {
    uintptr_t address, dynamic; // what is added to addresses in the file; the dynamic section
    const char *name;           // a path, "" for the program
    const void *map, *next, *other;
    unsigned index, name_space; // from 1 on; of dlmopen
    uintptr_t end;              // set by hook_linked_of, unless it is the program
};
void hook_linker_setup(void);
bool hook_is_glibc(void);
bool hook_next_linked(struct linked *linked); // from {0} on
bool hook_linked_at_start(const struct linked *linked);
bool hook_comes_after_us(const struct linked *linked);
bool hook_is_driver(const struct linked *linked);                      // by its soname
bool hook_linked_of(const void *address, struct linked *linked);       // what an address is in
void *hook_function_in(const struct linked *linked, const char *name); // or NULL
void *hook_next_function(const char *name);                            // what RTLD_NEXT is to us, or NULL
void hook_each_function(const struct linked *linked,
                        void (*see)(void *state, uintptr_t address, const char *name), void *state);
struct span {
    uintptr_t start, end;
};
void hook_each_reference(const struct linked *linked, void (*see)(void *state, void **word, const char *name),
                         void *state);
struct span hook_protected_in(const struct linked *linked); // the caller keeps it open
bool hook_has_namespaces(void);                             // of dlmopen, or an auditing library's

// maps.c
struct mapping {
    uint64_t start, end, offset, inode;
    const char *path; // until the next one is read
};
struct maps *hook_open_maps(void); // NULL without memory: nothing is mapped then
bool hook_next_mapping(struct maps *maps, struct mapping *mapping);
void hook_close_maps(struct maps *maps);

// sha256.c
void hook_sha256(const void *data, size_t size, char hex[65]);

#endif
#endif
