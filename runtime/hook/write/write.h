// Everything that writes the trace: its file and its chunks, the threads that fill them, rows, counts and
// records, and the final report.

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
#include "arch_hook.h"
#include "chunk.h"

// -- for all ---------------------------------------------------------------

// Compiler extensions.

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORT __attribute__((visibility("default")))
#define TLS __thread __attribute__((tls_model("initial-exec")))

// The state of a trace.

// This structure is in memory that reads as zeros in a forked child, so the child has no trace, ids or state
// until it starts a trace of its own.

#define MAX_MAPPINGS 16384
#define MAX_COUNT_CHUNKS 4096 // chunks have at most 20,000 rows

enum state { FRESH, STARTING, ON, OFF };

struct live {
    _Atomic uint32_t pid;   // the process while its trace is on, otherwise 0
    _Atomic uint32_t state; // enum state
    _Atomic uint32_t pool_lock;
    struct tail *tail;
    char path[4096];
    struct thread *pool;                               // states of threads that have ended
    struct thread *_Atomic threads;                    // all states, the newest first; they stay mapped
    struct count *_Atomic counts[2][MAX_COUNT_CHUNKS]; // rows of launches and of queries, by chunk
    _Atomic uint32_t count_rows[2];                    // rows handed out so far
    struct {
        unsigned char *_Atomic start;
        _Atomic size_t size;
    } mappings[MAX_MAPPINGS]; // mappings of the trace file
};
extern struct live *hook_live;

// References to things that may be gone.

// A reference to an object that the program may have destroyed since we saw it. All zeros stand for no
// object.
struct reference {
    const _Atomic uint64_t *current; // the generation of the object there now
    uint64_t generation;
};

static inline bool hook_is_alive(struct reference reference) {
    return reference.current &&
           atomic_load_explicit(reference.current, memory_order_acquire) == reference.generation;
}

// -- counts.c --------------------------------------------------------------

// How often each kernel was launched and each query made.

struct thread;

// A row of a `launches` or `counts` record: how often a thread launched a function or made a query, and when
// it first did so. The row is in a chunk that stays mapped, and only its own thread writes to it.
struct count {
    _Atomic uint64_t count, first;
    uint32_t id;             // id of the function or api
    _Atomic uint32_t probed; // how many launches had probes; graphs don't count
};

// The factor of the hash function for a thread's table of counters. The stubs use it too, because they count
// most launches.
#define COUNTER_FACTOR 0x9e3779b97f4a7c15u
#define COUNTER_SHIFT 40

struct counter {                // an entry of a thread's hash table, with open addressing
    uint64_t key;               // the function's handle, or the address of the query's slot
    struct count *row;          // row of the function that had the handle at that time
    struct reference reference; // to that function
};

// Find the row in which a thread counts a function (given by its handle) or a query (given by the address of
// its slot). Returns NULL if there isn't one, or if the object no longer exists.
struct count *hook_find_counter(const struct thread *thread, uint64_t key);
struct count *hook_add_counter(struct thread *thread, uint64_t key, bool query, uint32_t id,
                               struct reference reference); // or NULL
void hook_count(struct count *row, uint64_t now);
void hook_count_probed(struct count *row);
struct launch_counts {
    uint64_t all, probed; // without launches that graphs make
};
struct launch_counts hook_count_launches(void);
uint32_t hook_newest_launch(void); // the function whose first launch is the most recent, or 0

// Launches without probes, counted for each reason.
struct reason;

// Count a launch.
void hook_count_unprobed(uint32_t function, const struct reason *reason);
void hook_count_unprobed_times(uint32_t function, const struct reason *reason, uint64_t launches);
void hook_write_unprobed(void); // counts since the last call
uint64_t hook_unprobed_total(void);

// -- exec_parent.c ---------------------------------------------------------

// Traces of other processes.

extern uint64_t hook_run; // identifies a run of gpt-hook, whose processes share files; 0 without one

// Write the identity of this process into the tail of a file's first chunk, which has this size. After that,
// other processes may append to the file.
void hook_sign(struct tail *tail, uint32_t size);

bool hook_may_stay(const char *path, bool *denied);

// Write the path of this process's trace to another trace. `how` tells how the process was started, if not by
// exec.
void hook_name_to(const char *to, const char *how);

// If this process wrote the trace at this path before exec, end it; otherwise return false.
bool hook_end_earlier(const char *path);

// -- file.c ----------------------------------------------------------------

// Mappings of trace files, which anybody may truncate.

unsigned char *hook_map(int file, size_t size, off_t at); // safe to write, whatever happens to the file
void hook_unmap(unsigned char *start, size_t size);
void hook_bus_setup(void);
extern _Atomic bool hook_bus_installed; // our SIGBUS handler is installed
int hook_bus_exchange(const struct sigaction *action,
                      struct sigaction *before); // emulates sigaction for the program from then on
extern int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *); // set by hook_find_real

// -- header.c --------------------------------------------------------------

// The `header` record.

size_t hook_pack_header(struct gpt_packer *buffer,
                        bool whole); // `whole`: with the command line; returns its size

// -- limit.c ---------------------------------------------------------------

// --max-disk, for all processes of a run.

void hook_limit_setup(void (*stop)(void)); // `stop` turns recording off
extern _Atomic bool hook_limit_is_reached;
static inline bool hook_limit_reached(void) { // recording is off for good
    return atomic_load_explicit(&hook_limit_is_reached, memory_order_relaxed);
}

// Count bytes that are about to be written. If they'd exceed the limit, nothing is counted, and the result is
// false. For bytes that aren't `needed`, the limit is an eighth lower.
bool hook_may_write(uint64_t size, bool needed);
uint32_t hook_limit_chunk(uint32_t size); // the same size, or a smaller one if it's too much

// Pack records about the limit, once. Return false if there's nothing to say.
bool hook_tell_limit(struct gpt_packer *buffer, uint64_t now);
const char *hook_limit_fault(void); // what to say when nothing can be written; NULL if a process has said it
uint64_t hook_limit_stopped(void);  // processes of the run that reached the limit
void hook_limit_end(void);          // the process ends

// -- messages.c ------------------------------------------------------------

// Messages, and ending the recording early.

extern const char
    *hook_folder; // a live stream's, whose helper reads the trace while it grows; otherwise NULL
void hook_fail(const char *where, int error); // turns the hook off and reports why
void hook_turn_off(const char *where, const char *fact);
extern const char *(*hook_real_strerrordesc)(int); // glibc's strerrordesc_np (since 2.32), otherwise NULL
const char *hook_describe_error(int error);
void hook_say(const char *where, const char *fact, const char *consequence);

// -- no_signals.c ----------------------------------------------------------

// Until the end of the enclosing scope, the thread can't be cancelled, and no signal handler runs in it.
// Functions of the driver aren't cancellation points, and our calls of open and write inside them mustn't
// make them so.

struct held_signals {
    bool nested; // already held by a caller
    int cancel;
    sigset_t signals;
};

struct held_signals hook_hold_signals(void);
void hook_release_signals(const struct held_signals *before);

// Wait for a file, or only for the time if it's NULL, in a way that the program could do itself: signal
// handlers run, and one of them may leave by longjmp or exit. Callers must hold no locks, and must keep their
// state where it can be found again.
void hook_wait_with_signals(struct pollfd *file, uint64_t ms);

#define HOOK_HOLD_SIGNALS                                                                                    \
    __attribute__((cleanup(hook_release_signals), unused)) const struct held_signals held_ =                 \
        hook_hold_signals()

// -- reasons.c -------------------------------------------------------------
//
// Why a launch has no probes, or why the data of a buffer is missing. The codes and their texts are in
// gpt/stream/reasons.py. Two reasons with a detail may be equal and have different addresses: readers add
// them up.

struct reason {
    const char *code, *detail; // detail: or NULL
};

enum why {
#define X(code, text, advice) WHY_##code,
    GPT_REASONS(X)
#undef X
};

extern const struct reason hook_reasons[]; // by enum why, without a detail
extern const struct reason hook_uncounted; // stands for no reason: such launches aren't counted

#define WHY(code) (&hook_reasons[WHY_##code])
#define UNCOUNTED (&hook_uncounted)
#define WHY_DETAIL(code, detail)                                                                             \
    ({                                                                                                       \
        static const struct reason why_ = {#code, detail};                                                   \
        (void)WHY_##code;                                                                                    \
        &why_;                                                                                               \
    })

// Return a copy of the text that stays valid as long as the process runs, or NULL if memory runs out. Equal
// texts share one copy.
const char *hook_keep_text(const char *text);

// Intern a reason with a detail, or with an empty one. A code of a stage that isn't in our table is fine.
const struct reason *hook_make_reason(const char *code, const char *detail);

// -- coverage.c ------------------------------------------------------------

// The part of the final report about launches with and without probes.

// `kernel` is a number for it, which isn't 0.
void hook_add_reason(uint64_t kernel, const char *code, const char *detail, uint64_t launches);
void hook_add_gpu_time(uint64_t kernel, bool probed, uint64_t duration); // in time stamp ticks
// Explain why a buffer is lost, for people; NULL if the report needn't say so.
struct value;
const char *hook_explain_loss(struct value code);
uint64_t hook_count_reason(const struct reason *why); // launches without probes that have this code
void hook_say_coverage(uint64_t probed, uint64_t unprobed, uint64_t launches); // `launches` is the total

// -- report.c --------------------------------------------------------------

// Programs that the command starts without the hook, for the report.

// The reasons why a program runs without the hook, in rising order of how likely it's that the user didn't
// mean it.
enum loss {
    LOSS_NONE,
    LOSS_PROGRAM, // a static one, for example, can't be entered; programs it starts have the hook again
    LOSS_RIGHTS,  // the dynamic linker ignores LD_PRELOAD, as for setuid programs
    LOSS_DROPPED, // its environment doesn't bring the hook in
};

void hook_lost_setup(pid_t root, uint64_t error_device,
                     uint64_t error_inode); // the root process reports there
bool hook_notes_losses(void);               // true if some process will report them
void hook_note_loss(enum loss loss, const char *program, const char *how);

// Remove all notes and write the text for the worst of them. Returns which loss that was.
enum loss hook_take_loss(char *text, size_t size);

// Return whether this program may have installed a seccomp filter, which may kill it if we open a file.
bool hook_may_have_filter(void);
void hook_filters_setup(void); // at start, when our own files may still be opened

// The final report of gpt-hook's process.

void hook_report_setup(void);
void hook_report(void); // in the root process: one line that sums up the trace

void hook_report_loss(void); // before the root process becomes a program without the hook

// -- thread.c --------------------------------------------------------------

// Time stamps, which count ticks of the time stamp counter if it's reliable, and otherwise nanoseconds of
// CLOCK_MONOTONIC.

extern bool hook_has_tsc;
void hook_clock_setup(void);
uint64_t hook_monotonic(void);
uint64_t hook_tsc_hz(void); // 0: stamps are in ns

static inline uint64_t hook_now(void) { return LIKELY(hook_has_tsc) ? arch_clock() : hook_monotonic(); }

// The kinds of rows in a trace. All of them have a time and a result, and each kind has other fields besides.
// hook_layouts (thread.c) describes these fields to readers.
enum layout { LAYOUT_PLAIN, LAYOUT_OBJECT, LAYOUT_MEMORY, LAYOUT_LAUNCH, LAYOUT_GPU, LAYOUTS };

struct row {
    _Atomic uint64_t start;    // 0: unused; stored last
    _Atomic uint64_t duration; // 0: hasn't returned; stored last of the fields known on return
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

struct row_gpu {            // a row of a `gpu_times` record
    _Atomic uint64_t begin; // 0: unused; stored last
    uint64_t duration, call, stream;
    uint32_t api, function, thread;
    uint32_t probed; // 1: ran with probes
    uint32_t device, pad;
};

// A thread that writes: its chunk, and its batches of rows.

#define MAX_QUERIES 32 // queries that a process can count
#define EARLIER 4      // earlier chunks of a thread that stay mapped

// Rows of one layout inside the chunk. A signal handler can make calls too, between any two instructions, so
// a single instruction reserves a row. If the address that it returns isn't below `end`, the batch is full.
// If a handler starts a new batch after that instruction but before the comparison, the old address may be
// below the new `end`, and the thread then writes just after the old batch. That's why there's a spare row
// after `end`.
struct batch {
    unsigned char *next, *end;
    uint32_t rows; // in the next batch
};

enum { SAVE_SIZES = 4 };

struct mapped { // a mapped chunk, or all zero
    unsigned char *start;
    size_t size;
};

enum { LAYERS = 64 }; // modules below this level aren't recorded

struct thread {
    uint32_t pid, tid; // equals live->pid, or this state belongs to another process
    struct mapped chunk;
    struct batch batches[LAYOUTS];
    struct mapped earlier[EARLIER];     // newest first: calls in flight have rows there
    struct count *queries[MAX_QUERIES]; // by slot->query; index 0 means not counted
    struct mapped spare;                // the next chunk, if already prepared
    const struct row *in_flight;        // the innermost call when the previous chunk was full
    uint32_t used;                      // bytes used of the chunk's data
    struct counter *counters;
    uint32_t counters_mask, counters_used; // the mask is the size minus one; the size is a power of two
    struct stream_queue *timelines;
    struct save *_Atomic saves[SAVE_SIZES]; // free ones, by size (launch.c)
    struct thread *next;                    // in the pool
    struct thread *older;                   // in hook_live->threads
    uint64_t layers[LAYERS];                // ids of the modules that it is in (layers.c)
    _Atomic uint32_t caller;                // tid while it's a thread of the program, otherwise 0
};

extern TLS struct thread *hook_thread;
extern TLS const void *hook_calling;    // frame of the call that this thread is in; stale if left by longjmp
extern TLS bool hook_in_vfork;          // this thread is a vfork child, in its parent's memory
struct thread *hook_begin_thread(void); // slow path of hook_this_thread

// Return the calling thread's state, or NULL if nothing is recorded.
static inline struct thread *hook_this_thread(void) {
    struct thread *thread = hook_thread;
    if (LIKELY(thread && thread->pid == atomic_load_explicit(&hook_live->pid, memory_order_relaxed)))
        return thread;
    return hook_begin_thread();
}

// `start` begins the trace of this process in the thread's first chunk; `begin` is called after it.
void hook_threads_setup(bool (*start)(void), void (*begin)(void));
struct thread *hook_new_thread(void);                                // in this process; or NULL
bool hook_use_chunk(struct thread *thread, struct mapped chunk);     // false without a chunk
struct mapped hook_next_chunk(struct thread *thread, uint32_t size); // has at least this size
bool hook_start_thread(void *(*work)(void *));                       // starts a thread of ours in the program
// Give a thread of ours a separate descriptor table, which keeps only this one of the program's descriptors.
bool hook_own_files(int except);
void hook_make_spare(struct thread *thread); // inside a call that is slow anyway

// Records, written into the thread's chunk.

extern TLS bool hook_writing; // true in the middle of a record: a signal handler that runs now writes none
// A record is first tried in the thread's chunk, then in the next one, and finally in a chunk of the largest
// size.
enum { TRIES = 3 };
bool hook_open(struct gpt_packer *buffer, int try);
bool hook_close(struct gpt_packer *buffer); // the packed record is in the trace now
// Add an aligned binary value of `size` zero bytes to a record, to be filled in later. The last value of the
// record mustn't be binary. Returns the start of these bytes, or NULL if they don't fit.
unsigned char *hook_grow_rows(struct gpt_packer *buffer, unsigned char *start, size_t size);

// Write a record: HOOK_WRITE(child, .pid = 1, ...). Returns false if nothing is recorded.
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

// Do the same without holding signals, which takes two system calls, unless the record needs another chunk.
// Only for callers that no signal handler leaves by longjmp, such as Python's interpreter. A handler that
// runs in these few instructions can't write a record itself.
#define HOOK_WRITE_QUICKLY(kind, ...)                                                                        \
    ({                                                                                                       \
        const struct gpt_##kind quick_ = {__VA_ARGS__};                                                      \
        struct gpt_packer room_;                                                                             \
        hook_writing = true;                                                                                 \
        bool written_ = hook_open(&room_, 0) && gpt_pack_##kind(&room_, &quick_) && hook_close(&room_);      \
        hook_writing = false;                                                                                \
        written_ || HOOK_WRITE(kind, __VA_ARGS__);                                                           \
    })

static inline struct gpt_str hook_str(const char *text) {
    return (struct gpt_str){text, text ? strlen(text) : 0};
}

// The layouts of rows, which readers need, and how a thread gets an unused row.

static inline unsigned char *hook_take(struct batch *batch, size_t stride) {
    return arch_advance(&batch->next, stride); // a signal handler may take one too
}

struct row_layout {
    const struct gpt_field *items;
    size_t count, stride; // number of fields; bytes per row
};
extern const struct row_layout hook_layouts[LAYOUTS];
bool hook_new_batch(struct thread *thread, enum layout layout);

// Return an unused row, or NULL.
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
const struct row *hook_call_in_flight(const struct thread *thread); // the innermost one, or NULL

// -- file.c ----------------------------------------------------------------

// The trace file and its chunks.

// The parts of a chunk in memory.
static inline struct tail *mapped_tail(struct mapped chunk) {
    return (struct tail *)(chunk.start + chunk.size - CHUNK_TAIL);
}

static inline struct gpt_packer mapped_room(struct mapped chunk, uint32_t used) {
    return (struct gpt_packer){chunk.start + CHUNK_HEAD + used, chunk.start + chunk.size - CHUNK_TAIL, false};
}

static inline void hook_set_used(unsigned char *chunk, uint32_t used) {
    atomic_store_explicit((_Atomic uint32_t *)(chunk + CHUNK_USED), htobe32(used), memory_order_release);
}

// Chunk sizes in bytes.
uint32_t hook_chunk_size(unsigned step); // sizes grow in steps from 4 KiB
uint32_t
hook_chunk_for(size_t bytes); // the smallest with room for this many bytes of records, or the largest
uint32_t hook_chunk_after(uint32_t size); // the next larger size, or the largest

// Append a chunk to the file. `flag` is ENDED for the last one.
struct mapped hook_new_chunk(uint32_t size, uint64_t flag);

// Map a chunk at an offset of a file, which may belong to another process. On failure errno is set.
struct mapped hook_make_chunk(int file, uint64_t at, uint32_t size);
struct tail *hook_map_tail(int file, uint32_t size); // tail of the first chunk

bool hook_may_grow(
    uint64_t size); // checks RLIMIT_FSIZE, since exceeding it raises a signal; sets errno if not

int hook_open_file(const char *path); // an existing trace, for reading and writing
void hook_keep_file(int file, const struct stat *found);
void hook_close_file(void);
bool hook_is_unread(void); // true for a live stream whose helper was killed: record nothing more
int hook_keep_apart(void); // for a thread that will have a descriptor table of its own; -1 without a file

// -- totals.c --------------------------------------------------------------

struct trace_totals {
    uint64_t calls, launches, processes, bytes, probed, unprobed;
    uint64_t needed, most, needing; // for --memusage: total bytes, the largest launch, number of launches
    uint64_t logs, full;            // logs of launches, and how many of them overflowed
    uint64_t entries, dropped;      // entries in all logs, and how many didn't fit
    uint64_t first, last; // first block with entries in logs that overflowed, and the one after the last
    uint64_t stopped;     // processes that --max-disk stopped
    uint64_t quick;       // bytes of buffers that were packed without zstd
    uint64_t lost;        // launches whose buffers are missing
    const char *why_lost; // for the first of them
    int fault;            // errno if the first file can't be opened
};

// Add up the trace at a path and the traces of the processes that it names. A process may call this once,
// because the result is static.
const struct trace_totals *hook_reread(const char *path);

// -- trace.c ---------------------------------------------------------------

// File names of a process's trace.

// Copy one of our environment variables permanently, or return NULL if it isn't set. Programs overwrite their
// environment to change their name in process lists.
const char *hook_keep_variable(const char *name);

extern const char *hook_template; // NAME with %p and so on; NULL or empty: write nothing

size_t hook_expand_name(char *path, size_t size); // returns its length

// Create this process's file at hook_live->path and open it. Sets `first` if the file is at NAME itself.
// Returns -1 with errno set if that fails. If another process writes there, the result is -1 too, and
// hook_live->state is OFF.
int hook_create_file(bool *first);

// End the trace of the program that this process was before exec, if that program left it open.
void hook_end_predecessor(void);

// Recording of calls, which gpt-hook ctl turns on and off.

// A forked child inherits it. Loads and look-ups are written either way.
extern _Atomic bool hook_recording;

struct periods {
    uint64_t count; // periods that have started
    uint64_t since; // time of the last change in ns since the epoch, or 0
};
extern struct periods hook_periods; // used only by the thread that switches

void hook_recording_setup(void);
void hook_begin_recording(void); // for a new trace
void hook_write_recording(bool on);

// The beginning and the end of a trace, and the reasons to end one early.

bool hook_trace_setup(void (*more)(bool end)); // `more` writes the other records of the start and the end
void *hook_process_memory(size_t size);        // reads as zero in a forked child too; NULL if memory runs out
bool hook_is_ours(void);                       // true if this process has started a trace
void hook_finish(unsigned status);             // ends the trace; later events aren't recorded

#endif
