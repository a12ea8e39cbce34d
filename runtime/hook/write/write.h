// The trace: its file and chunks, the threads that write them, rows, counts and records, and what is said at
// the end.

#ifndef GPT_WRITE_H
#define GPT_WRITE_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "abi/records.h"
#include "chunk.h"

// -- for all ---------------------------------------------------------------

// What C does not say to the compiler.

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORT __attribute__((visibility("default")))
#define TLS __thread __attribute__((tls_model("initial-exec")))

// The state of a trace.

// It lives in memory that is zero again in a forked child: it has no trace,
// no ids, no state until it begins its own.

#define MAX_MAPPINGS 16384
#define MAX_COUNT_CHUNKS 4096 // of 20,000 rows, most of them

enum state { FRESH, STARTING, ON, OFF };

struct live {
    _Atomic uint32_t pid;   // of the process while its trace is on, else 0
    _Atomic uint32_t state; // enum state
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

// Something that may be gone, and whether it is.

// An object as it was seen: it may be gone since. One that is all zero is none.
struct reference {
    const _Atomic uint64_t *current; // the generation of what is in its place now
    uint64_t generation;
};

static inline bool hook_is_alive(struct reference reference) {
    return reference.current &&
           atomic_load_explicit(reference.current, memory_order_acquire) == reference.generation;
}

// -- counts.c --------------------------------------------------------------

// How often each kernel was launched, and each query made.

struct thread;

// How often a thread launched a function or made a query, and when first: a row of a `launches` or `counts`
// record, in a chunk that stays mapped. Only the thread writes it.
struct count {
    _Atomic uint64_t count, first;
    uint32_t id, pad; // of the function, of the api
};

// Where in a thread's table a key is, modulo its size: also for the stubs, which count most launches.
#define COUNTER_FACTOR 0x9e3779b97f4a7c15u
#define COUNTER_SHIFT 40

struct counter {                // of a thread's table: open addressing
    uint64_t key;               // the function's handle, the address of the query's slot
    struct count *row;          // of the function that had the handle when this was made
    struct reference reference; // to that
};

// The row that a thread counts a key in: the handle of a function that is launched, the address of a query's
// slot. NULL if it has none, or that of an object that is gone.
struct count *hook_find_counter(const struct thread *thread, uint64_t key);
struct count *hook_add_counter(struct thread *thread, uint64_t key, bool query, uint32_t id,
                               struct reference reference); // or NULL
void hook_count(struct count *row, uint64_t now);
uint64_t hook_count_launches(void); // all of them
uint32_t hook_newest_launch(void);  // the function that was launched for the first time last, or 0

// -- exec_parent.c ---------------------------------------------------------

// Traces of other processes.

extern uint64_t hook_run; // of gpt-hook: which processes share files; 0 without it

// Says in the tail of a file, whose first chunk has so many bytes, whose it is: from then on others may add
// to it.
void hook_sign(struct tail *tail, uint32_t size);

bool hook_may_stay(const char *path);

// Tells another trace of this one. `how` it began, if that was not by exec.
void hook_name_to(const char *to, const char *how);

// Ends the trace at a path, if a program began it that this process was before exec. False if none did.
bool hook_end_earlier(const char *path);

// -- file.c ----------------------------------------------------------------

// Mappings of trace files, which somebody may truncate.

unsigned char *hook_map(int file, size_t size, off_t at); // may be written whatever becomes of the file
void hook_unmap(unsigned char *start, size_t size);
void hook_bus_setup(void);
extern _Atomic bool hook_bus_installed; // the handler of SIGBUS is ours
int hook_bus_exchange(const struct sigaction *action,
                      struct sigaction *before); // what sigaction is to the program then
extern int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *); // set by hook_find_real

// -- messages.c ------------------------------------------------------------

// Messages, and what ends the recording.

extern const char *hook_folder; // of a live stream, whose helper reads the trace while it grows; else NULL
void hook_fail(const char *where, int error); // turns the hook off and says so
void hook_turn_off(const char *where, const char *fact);
extern const char *(*hook_real_strerrordesc)(int); // glibc's strerrordesc_np, from 2.32 on; else NULL
const char *hook_describe_error(int error);
void hook_say(const char *where, const char *fact, const char *consequence);

// -- no_signals.c ----------------------------------------------------------

// For the rest of its scope a thread is neither cancelled (functions of the driver are not cancellation
// points, and what is opened and written here must not make them such) nor sent into a signal handler.

struct held_signals {
    bool nested; // they were held before
    int cancel;
    sigset_t signals;
};

struct held_signals hook_hold_signals(void);
void hook_release_signals(const struct held_signals *before);

// Waits for a file (NULL: for nothing) as the program itself would: signals that come are handled, and a
// handler may leave for good. So nothing may be held, and all that is kept must be found again elsewhere.
void hook_wait_with_signals(struct pollfd *file, uint64_t ms);

#define HOOK_HOLD_SIGNALS                                                                                    \
    __attribute__((cleanup(hook_release_signals), unused)) const struct held_signals held_ =                 \
        hook_hold_signals()

// -- report.c --------------------------------------------------------------

// What is said at the end of launches with probes and without.

void hook_add_reason(const char *reason, size_t size, uint64_t launches);
void hook_add_gpu_time(bool probed, uint64_t duration); // of a kernel, as of time stamps
uint64_t hook_count_reason(const char *start);          // launches without probes for a reason that starts so
void hook_say_coverage(uint64_t probed, uint64_t unprobed, uint64_t launches); // the latter: all there were

// Programs that the command starts without the hook: what the report says of them.

// Why a program is started without the hook; the later, the likelier it is a fault.
enum loss {
    LOSS_NONE,
    LOSS_PROGRAM, // none can enter it, as a static one; what it starts has the hook again
    LOSS_RIGHTS,  // the dynamic linker ignores LD_PRELOAD, as for a setuid one
    LOSS_DROPPED, // its environment doesn't bring the hook in
};

void hook_lost_setup(pid_t root, uint64_t error_device, uint64_t error_inode); // that reports, and where
bool hook_notes_losses(void); // whether somebody will report them
void hook_note_loss(enum loss loss, const char *program, const char *how);

// Remove all notes, and write what the worst of them says. Returns what it is.
enum loss hook_take_loss(char *text, size_t size);

// What gpt-hook's process says at its end.

void hook_report_setup(void);
void hook_report(void); // in the root process: one line about what was written

void hook_report_loss(void); // the same, as the root process becomes a program without the hook

// -- thread.c --------------------------------------------------------------

// Time stamps, ticks of the time stamp counter where it is fit for that, else CLOCK_MONOTONIC.

extern bool hook_has_tsc;
void hook_clock_setup(void);
uint64_t hook_monotonic(void);
uint64_t hook_tsc_hz(void); // 0: stamps are ns

static inline uint64_t hook_now(void) {
    return LIKELY(hook_has_tsc) ? __builtin_ia32_rdtsc() : hook_monotonic();
}

// Rows of a trace as they lie in it.

// Rows of a trace, by what they have beside time and result. hook_layouts (thread.c) declares them to
// readers.
enum layout { LAYOUT_PLAIN, LAYOUT_OBJECT, LAYOUT_MEMORY, LAYOUT_LAUNCH, LAYOUT_GPU, LAYOUTS };

struct row {
    _Atomic uint64_t start;    // 0: not used; stored last
    _Atomic uint64_t duration; // 0: has not returned; stored last of what is known then
    uint32_t api;
    int32_t result;
};

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
    uint32_t api, function, thread;
    uint32_t probed; // 1: it ran with probes
    uint32_t device, pad;
};

// A thread that writes: its chunk, and the batches of rows in it.

#define MAX_QUERIES 32 // that one process can count
#define EARLIER 4      // chunks of a thread that stay mapped beside the one that it writes

// Rows of one layout inside the chunk. A signal handler may make calls too, between any two instructions of a
// call: a row is taken by one instruction, and where it is not below `end` then, it is none. A call
// that is interrupted right there by a handler that begins a batch may take its row for one of that: so there
// is one more after `end`.
struct batch {
    unsigned char *next, *end;
    uint32_t rows; // of the batch after it
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
    uint32_t counters_mask, counters_used; // the mask is one less than their number, a power of two
    struct stream_queue *timelines;
    struct thread *next; // in the pool
};

extern TLS struct thread *hook_thread;
extern TLS const void *hook_calling;    // frame of the call that this thread makes; stale if that was left
extern TLS bool hook_in_vfork;          // this thread is a vfork child, in its parent's memory
struct thread *hook_begin_thread(void); // the slow way of hook_this_thread

// Whose chunk to write; NULL if nothing is recorded.
static inline struct thread *hook_this_thread(void) {
    struct thread *thread = hook_thread;
    if (LIKELY(thread && thread->pid == atomic_load_explicit(&hook_live->pid, memory_order_relaxed)))
        return thread;
    return hook_begin_thread();
}

void hook_threads_setup(void);
struct thread *hook_new_thread(void);                                // of this process, or NULL
bool hook_use_chunk(struct thread *thread, struct mapped chunk);     // false: it is none
struct mapped hook_next_chunk(struct thread *thread, uint32_t size); // of so many bytes at least
bool hook_start_thread(void *(*work)(void *));                       // of ours, in the program
void hook_make_spare(struct thread *thread);                         // in a call that takes its time anyway

// Records: into the chunk of the thread.

extern TLS bool hook_writing; // a record: a signal handler that comes now writes none
// Room for a record: in the thread's chunk, if that had none in the next one, then in one of the largest.
enum { TRIES = 3 };
bool hook_open(struct gpt_packer *buffer, int try);
bool hook_close(struct gpt_packer *buffer); // what was packed is in the trace
// After a record whose last value is not bytes: makes them `size` bytes, aligned, that stay as they are,
// zero. Returns where they begin, or NULL if they do not fit.
unsigned char *hook_grow_rows(struct gpt_packer *buffer, unsigned char *start, size_t size);

// Writes a record: HOOK_WRITE(child, .pid = 1, ...). Returns false if nothing is recorded.
#define HOOK_WRITE(kind, ...)                                                                                \
    ({                                                                                                       \
        const struct gpt_##kind record_ = {__VA_ARGS__};                                                     \
        struct gpt_packer buffer_;                                                                           \
        HOOK_HOLD_SIGNALS;                                                                                   \
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

// Rows: how they are described to readers, and how a thread takes one.

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

struct row_layout {
    const struct gpt_field *items;
    size_t count, stride; // fields, bytes of a row
};
extern const struct row_layout hook_layouts[LAYOUTS];
bool hook_new_batch(struct thread *thread, enum layout layout);

// A free row, or NULL.
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

// -- file.c ----------------------------------------------------------------

// The file of a trace and its chunks.

// A chunk, and what lies in it.
static inline struct tail *mapped_tail(struct mapped chunk) {
    return (struct tail *)(chunk.start + chunk.size - CHUNK_TAIL);
}

static inline struct gpt_packer mapped_room(struct mapped chunk, uint32_t used) {
    return (struct gpt_packer){chunk.start + CHUNK_HEAD + used, chunk.start + chunk.size - CHUNK_TAIL, false};
}

void hook_set_used(unsigned char *chunk, uint32_t used);

// Bytes of chunks.
uint32_t hook_chunk_size(unsigned step); // of those of 4 KiB on that grow
uint32_t hook_chunk_for(size_t bytes); // the smallest with room for so many bytes of records, or the largest
uint32_t hook_chunk_after(uint32_t size); // the next larger one, or the largest

// Takes a chunk at the end of the file, for ever. `flag` is ENDED for the last one.
struct mapped hook_new_chunk(uint32_t size, uint64_t flag);

// The same at a place in a file that may be another one; errno is set if it is none.
struct mapped hook_make_chunk(int file, uint64_t at, uint32_t size);
struct tail *hook_map_tail(int file, uint32_t size); // of its first chunk

bool hook_may_grow(uint64_t size); // RLIMIT_FSIZE lets a file: trying brings a signal; errno is set if not

int hook_open_file(const char *path); // a trace that is there: to read and to write
void hook_keep_file(int file, const struct stat *found);
void hook_close_file(void);
bool hook_is_unread(void); // a live stream: its helper was killed, and nothing more is recorded
int hook_keep_apart(void); // of a thread that will have descriptors of its own; -1: there is none

// -- totals.c --------------------------------------------------------------

struct trace_totals {
    uint64_t calls, launches, processes, bytes, probed, unprobed;
    uint64_t needed, most, needing; // of --memusage: bytes of all and of one launch, and how many these are
    uint64_t logs, full;            // of launches, and how many of them were too small
    uint64_t entries, dropped;      // in all of them, and what did not fit
    int fault;                      // errno, if the first file can't be opened
};

// Adds up the trace at a path and those of the processes that it names. Once in a process: the memory is its
// own.
const struct trace_totals *hook_reread(const char *path);

// -- trace.c ---------------------------------------------------------------

// The `header` record.

size_t hook_pack_header(struct gpt_packer *buffer, bool whole); // with the command line; returns its bytes

// The names of a process's files.

// The value of a variable of ours, which stays; NULL if it is not set. Programs write over their environment,
// to show what they do in lists of processes.
const char *hook_keep_variable(const char *name);

extern const char *hook_template; // NAME, with %p and the like; NULL or empty: nothing is written

size_t hook_expand_name(char *path, size_t size); // returns its length

// Creates the file of this process, at hook_live->path, and opens it; -1 with errno set if there is none, or
// hook_live->state is OFF: somebody else writes there. `first` at NAME?
int hook_create_file(bool *first);

// A program that this process was before exec may have left its trace without end.
void hook_end_predecessor(void);

// Whether calls are recorded: gpt-hook ctl turns that on and off.

// A forked child goes on as its parent was. What is loaded and looked up is written in either case.
extern _Atomic bool hook_recording;

struct periods {
    uint64_t count; // that have begun
    uint64_t since; // ns since the epoch: the last change; 0: there was none
};
extern struct periods hook_periods; // of the thread that turns it on and off

void hook_recording_setup(void);
void hook_begin_recording(void); // of a trace that begins
void hook_write_recording(bool on);

// A trace: its beginning, its end, and what ends it before.

bool hook_trace_setup(void (*more)(void)); // writes what else belongs to the beginning and the end
void *hook_process_memory(size_t size);    // zero, and zero again in a forked child; NULL if there is none
bool hook_is_ours(void);                   // whether there is a trace, and this process began it
void hook_finish(unsigned status);         // ends the trace; what comes later is not recorded

#endif
