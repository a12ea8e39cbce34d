// Kernels with probes in place of the program's: asked for, loaded, launched, and their buffers drained.

#ifndef GPT_PROBE_H
#define GPT_PROBE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "abi/cuda.h"
#include "common/broker.h"
#include "common/cache.h"
#include "hook/watch/watch.h"
#include "unpack.h"

// -- answer.c --------------------------------------------------------------

// A kernel with probes in it, as the pipeline made it: the image, and what its records say.

enum { MOST_MAPS = 64 };

struct woven_map {
    uint64_t id; // in the answer
    uint64_t capacity, stride;
    enum { LEVEL_THREAD, LEVEL_WARP, LEVEL_BLOCK } level;
    uint64_t wanted; // capacity of one that is counted only
    bool log;
    bool keeps_last; // if the lowest bit of its address is set
    bool grows;      // a log, if the lowest bits of its address say so
    uint32_t number; // in the trace
};

struct woven_param {
    uint64_t offset, size;
    uint32_t map; // index of it, of an added one
};

struct woven_variable {
    const char *name;
    uint64_t size, offset; // 0 bytes: not known
    bool constant, always;
};

struct woven {
    struct gpt_bytes answer; // what the image is a part of
    uint64_t chosen;         // id of its ptx record
    const void *image;
    size_t image_size;
    const void *plain; // the image without probes; NULL: it is not there
    size_t plain_size;
    struct woven_param *params, *added;
    struct woven_map *maps;
    struct woven_variable *variables;
    size_t param_count, added_count, map_count, variable_count;
    size_t param_bytes;  // of its own parameters
    uint32_t cluster[3]; // blocks that each of a launch's grid stands for
    const char *table;   // NULL: it has none
    char *fault;         // why no probes are in it; NULL if they are
    uint32_t number;     // of the kernel in the trace
};

// Whether the pipeline would say the same again. What is wrong may be so now only: a compiler was killed,
// say.
bool hook_is_lasting(const struct gpt_bytes *answer);

// Reads an answer, which becomes part of the result. NULL without memory.
struct woven *hook_read_woven(struct gpt_bytes *answer, const char *kernel);

// Its records, into the trace. The registers are those of the program's kernel; 0: they are not known.
void hook_write_woven(struct woven *woven, uint32_t function, unsigned registers);
void hook_free_woven(struct woven *woven);

// Records of the pipeline's answers, into the trace.

uint64_t hook_number_of_map(const struct woven *woven, uint64_t id); // in the trace; 0: it has no such map

// Writes a record of an answer, with its number in the trace. A function of 0 is none; with a number of
// registers other than 0 that of the program's kernel is written after the one with probes.
void hook_retell(struct cursor from, const struct woven *woven, uint32_t number, uint32_t function,
                 unsigned before);

// -- drain.c ---------------------------------------------------------------

// The file beside the trace, NAME.buffers.

bool hook_put_beside(const void *data, uint64_t size, uint64_t *offset); // false: it cannot be written
const char *hook_name_beside(void);

// Packing by zstd, where that is installed.

struct linker { // functions of libc
    void *(*open)(const char *, int);
    int (*close)(void *);
    void *(*symbol)(void *, const char *);
};

// Before the program begins, for no other thread is there that holds a lock of the dynamic linker.
void hook_zstd_setup(const struct linker *linker);

// A frame with the data, which stays until the next; NULL if that is not smaller by an eighth. For one
// thread.
const void *hook_compress(const void *data, uint64_t size, uint64_t *packed);

// -- graph_exec.c ----------------------------------------------------------

// Handlers of single nodes, of executable graphs and of those that the program builds.

extern handler hook_before_exec_kernel, hook_after_exec_kernel, hook_before_exec_node, hook_after_exec_node,
    hook_after_node_enabled, hook_before_exec_copy, hook_before_exec_set, hook_before_packed,
    hook_after_packed;

// -- graph_lock.c ----------------------------------------------------------

// Whose turn it is with a graph.

struct turn {
    struct turn *next;
    uint64_t graph;
    pthread_t thread;
};

// Waits while another thread has the graph. False if this one has it: a signal handler of it asks.
bool hook_begin_turn(struct turn *turn, uint64_t graph);
void hook_end_turn(struct turn *turn);

// -- graph_replay.c --------------------------------------------------------

// A kernel of ours, which copies memory and clears what it copied.

// For the current context, and as long as that is there. 0: the driver does not assemble it.
uint64_t hook_load_mover(void);

// Copies and clears in a stream. Addresses are multiples of 16, bytes are rounded up to such. A mover of 0,
// and a target of 0, for which memory is only cleared, are calls of the driver.
bool hook_move(uint64_t mover, uint64_t to, uint64_t from, uint64_t bytes, uint64_t stream);

// -- kernels.c -------------------------------------------------------------

// Kernels with probes, by the function or kernel that the program has.

struct shared_variable { // in constant memory: it is copied
    uint64_t from, to, size;
    _Atomic bool *taken; // the program has its address
};

// What is known of a function that was looked up.
struct looked_up {
    uint64_t handle, module, context;
    struct reference reference;
    uint32_t function;  // id in the trace
    bool is_kernel;     // of a library
    unsigned order;     // that it was asked for by
    unsigned registers; // most of a thread that it may have with probes; 0: any number
};

// A kernel with probes in a context, where its code is loaded and it has its variables. Once a context is
// gone its handle may be another one's.
struct bound {
    struct bound *next;
    uint64_t context;
    struct reference of_context;
    uint64_t function;   // the CUfunction there
    int max_threads;     // of a block
    const char *refused; // why it does not run there; NULL if it does
    struct shared_variable *variables;
    size_t variable_count;
    uint64_t plain; // with --benchmark: the CUfunction without probes, and its variables
    struct shared_variable *plain_variables;
    size_t plain_variable_count;
};

// The first one of a handle is in the table. Those that hang on it may be launched where it cannot: they have
// fewer registers, and stand in the order of these.
struct probed {
    _Atomic unsigned users; // of what it and those that hang on it have loaded
    _Atomic unsigned order; // that it was asked for by
    uint64_t handle;        // the program's
    struct reference reference;
    uint32_t function; // its id in the trace
    uint64_t kernel; // of a function that a kernel has in a context, that kernel, which has the rest; else 0
    const char *refused; // why it runs without probes; NULL if it does not
    struct looked_up asked;
    char *name;
    uint64_t probed; // what is launched in its place
    const struct woven *woven;
    uint64_t module;              // the program's
    uint64_t loaded;              // ours
    uint64_t plain, plain_loaded; // the same without probes, with --benchmark
    unsigned used;                // registers
    bool is_library;              // is what is loaded
    bool going;                   // its module is being unloaded
    _Atomic(const char *) unfit;  // why it is not launched any more, though it was loaded
    _Atomic(struct bound *) bounds;
    _Atomic(struct probed *) fewer; // the next one
    _Atomic unsigned limit;         // of registers, which the last one that was asked for has; 0: none was
    _Atomic uint64_t missed;        // the context in which it was wanted and was not there
    _Atomic uint64_t launches;
    struct probed *first; // that it hangs on; NULL: none
    struct probed *next;  // of all
};

struct probed *hook_find_probed(uint64_t handle); // NULL: it is not known
struct probed *hook_find_entry(uint64_t handle);  // the same, of the function of a kernel that kernel's

// What it has stays loaded until it is let go, also if other probes are named meanwhile. False: they were,
// and nothing of it may be used but its name in the trace.
bool hook_hold_probed(struct probed *probed);
void hook_hold_again(struct probed *probed); // one that is held
void hook_let_probed_go(struct probed *probed);

// One of those that hang on none, or hang on one, that other probes replaced and nobody uses, of the current
// context; it is not given again. NULL: there are none now.
struct probed *hook_take_replaced(uint64_t context);

// In a context; NULL: it is not there.
struct bound *hook_find_bound(const struct probed *probed, uint64_t context);

// To the table, which has it from then on. False without memory, or if a later one is there.
bool hook_add_probed(struct probed *added);
void hook_add_fewer(struct probed *first, struct probed *added);

uint64_t hook_kernel_function(uint64_t kernel, uint64_t context); // that the program has of a kernel; 0: none

// The kernel that a function of this name is of in the current context; 0: none that is known.
uint64_t hook_find_kernel(uint64_t function, const char *name);

// One that was wanted in this context and is not there; it is not given again. NULL: there is none.
struct probed *hook_take_missed(uint64_t context);
void hook_miss(struct probed *probed, uint64_t context);

// Before a module is unloaded, those of it are marked, and unmarked if that failed. Else each that is gone by
// it is given once; NULL: there are no more.
void hook_mark_going(uint64_t module, bool going);
struct probed *hook_next_unloaded(void);

// Which kernel with probes runs in place of the program's.

struct choice {
    struct probed *first, *probed; // of the handle; what runs, NULL: the program's
    struct bound *bound;
    uint64_t handle;    // what is launched
    const char *reason; // why none runs
};

// What is to run is held until it is let go.
struct choice hook_choose(const struct launch *launch, uint64_t context);
void hook_let_choice_go(const struct choice *choice);

#define REFUSED "the driver refused the launch with probes"

// The driver did, and has launched the program's.
void hook_mark_unfit(struct probed *probed, const struct launch *launch, CUresult status);

// Whether it may run in a context, with blocks of so many threads; NULL, or why not.
const char *hook_find_obstacle(const struct probed *probed, const struct bound *bound, uint64_t threads);

// The most registers of a thread with which a multiprocessor holds so many blocks of so many threads.
unsigned hook_most_registers(uint64_t threads, uint64_t blocks);
// Has the kernel assembled once more, with no more registers than these. What is asked for is not waited for.
void hook_want_fewer(struct probed *first, unsigned registers);

// -- attributes.c ----------------------------------------------------------

// What the program is told of how many blocks fit.

extern const char UNFIT_OCCUPANCY[];

// Compares a kernel that was just loaded with what was said of the program's own: NULL, or UNFIT_OCCUPANCY.
const char *hook_compare_occupancy(struct probed *probed, const struct bound *bound);

extern handler hook_after_blocks, hook_after_block_size, hook_after_shared, hook_after_clusters;

// What the program sets of its functions and kernels is set of those with probes.

#define UNFIT_PROPERTY "what the program sets of it cannot be set with probes"

bool hook_copy_properties(const struct probed *probed,
                          const struct bound *bound); // false if one cannot be set

extern handler hook_after_attribute;

// -- buffers.c -------------------------------------------------------------

// Device memory for buffers: slabs that are ready, a launch's place in one, and their way back.

// Buffers begin at multiples of 256.
static inline uint64_t hook_rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

enum { BENCHMARK_EVENTS = 4 };
struct replay;
struct demand;

struct save { // a launch, and where its buffers are
    struct save *next;
    struct replay *replay;   // of a graph: it stands for the launches of all nodes, and has no kernel
    bool repeats;            // of a node in the body of a conditional one: it runs several times, maybe
    bool unpacked;           // of a launch that is captured: it has no buffers
    _Atomic unsigned others; // that have it too, of a node
    struct slab *slab;
    struct probed *probed;
    uint32_t id;                       // in the trace; 0: it has no record, its buffers are of no use
    uint64_t offset;                   // of the first buffer in the slab
    uint64_t bytes;                    // of all
    uint64_t function;                 // what the program passed, to be called if this one cannot run
    void **params, **extra;            // the same
    char *block;                       // its parameters, at their places
    uint64_t prologue;                 // ticks before the launch
    uint64_t needed;                   // bytes, with --memusage
    uint64_t events[BENCHMARK_EVENTS]; // with --benchmark; 0: none
    uint64_t sizes[MOST_MAPS];         // of each map's buffer
    uint8_t steps[MOST_MAPS];          // how much larger logs are than their maps
    struct demand *demand;             // NULL: it has no log that grows
    uint32_t grid[3];                  // blocks
    void *arguments[];                 // pointers to the values behind them, as cuLaunchKernel takes them
};

enum moment { ON_THE_WAY, MEMORY_NEEDED, CONTEXT_ENDS, PROCESS_ENDS };

// What a launch needs.
struct claim {
    uint64_t context, stream;
    uint32_t thread;
    bool dependent; // it may begin before its predecessor has ended: nothing may come between
    bool copied;    // its buffers are a copy, over whatever was there
    uint64_t bytes;
};

// Finds buffers for a launch into a stream, all zero but for a copy. NULL, with a reason, if there are none.
// Whoever has them gives them back by hook_issue, when the launch is in the stream or has failed.
struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const char **reason);
// Waits until an earlier launch that shares the demand is counted: with --complete for that launch, else only
// if something has ended and is not read yet. Returns the most bytes that its buffers may have: half of the
// memory unless later launches can wait for it.
uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand);
void hook_wake_claims(void);
uint64_t hook_slab_address(const struct slab *slab);
void hook_make_next(const struct slab *like); // for a later claim, by the one who has places in this one
void hook_issue(struct slab *slab, struct save *save); // NULL: it failed

// Buffers, all zero once the slab is ready, that are not drained where they are: of an executable graph, with
// an event for the end of its last replay. NULL, with a reason, if there are none.
// In the current context; `replaced` are let go right after.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const char **reason);
void hook_let_go(struct slab *slab); // once its event has come

// Around a call by which streams come to be captured: meanwhile those of other calls are not drained.
void hook_hold_drains(void);
void hook_let_drain(void);

void hook_drain(uint64_t stream, uint32_t thread); // what is ready, of a stream, or of all (UINT64_MAX)
void hook_drain_all(enum moment moment); // and waits for it, a minute at most; of memory, in this context

// The process ends, perhaps within a call of the driver, by a signal handler: what is still on its way is
// said to be lost.
void hook_abandon_pending(bool within_driver);
bool hook_give_slabs_back(void); // of the current context, to the driver; false if none was free

// Remembers how many entries launches claimed in their logs, so that the next launch of the same kernel gets
// logs that are large enough.

// One for each kernel, grid and block, shared by their launches and never freed.
struct demand;

// NULL if the kernel has no log that grows, or without memory. `first`: no launch asked for it before.
struct demand *hook_find_demand(const struct save *save, const uint32_t block[3], bool *first);
bool hook_is_counted(const struct demand *demand); // whether any launch has been

// What a launch claimed in the log of this map. The lock of the context's state must be free.
void hook_count_entries(struct demand *demand, uint32_t map, uint64_t entries);

// Entries that a log has room for at a step of its growth (gpt-stream(5), PROBE BUFFERS).
uint64_t hook_log_capacity(const struct woven_map *map, unsigned step);

// Sizes the logs of a launch by what earlier launches claimed, while all its buffers fit into `most` bytes. A
// log never gets smaller than its map says. Returns false if no buffer got smaller than before.
bool hook_size_logs(struct save *save, uint64_t most);

// A piece of device memory, as buffers.c and drain.c have it.

struct slab {
    TAILQ_ENTRY(slab) link; // of those of its pool that are in use, ready, or draining
    struct pool *pool;
    struct slab *later; // of those that are to be written
    uint64_t address, size, used;
    uint64_t number;        // of those of its pool that were sent back
    uint64_t event;         // in its stream, after the last launch
    uint64_t cleared;       // in ours: it is ready to be written to
    uint64_t stream;        // that has places in it
    uint32_t thread;        // of the default stream of a thread: which one
    unsigned issuing;       // launches that have a place and are not in the stream yet
    bool known_ready;       // by the host; else its event says when
    bool copied;            // it has copies of what graphs wrote, and need not be clear for those
    uint64_t context, ours; // where it is, and the stream that clears it
    char **stage, **zeros;  // of its context: for the thread that writes, and to clear it with
    CUresult failed;        // of the device: it is not used again
    enum { SLAB_READY, SLAB_OPEN, SLAB_FULL, SLAB_DRAINING, SLAB_HELD, SLAB_DEAD } state;
    struct save *saves, *last;
};

TAILQ_HEAD(slab_list, slab);

// The slab may leave the list meanwhile.
#define EACH_SLAB(slab, list)                                                                                \
    for (struct slab *slab = TAILQ_FIRST(list), *next; slab && (next = TAILQ_NEXT(slab, link), true);        \
         slab = next)

CUresult hook_zero_slab(const struct slab *slab, uint64_t bytes); // its first ones, in our stream
void hook_slab_back(struct slab *slab);                           // what was in it is written

// The memory of a context for buffers, in slabs. All under the lock of the context's state.

struct pool {
    struct pool *next;
    struct reference reference;
    uint64_t context, stream;
    uint64_t memory;      // the pool of the driver
    char *stage;          // goes with the context
    uint64_t bytes, most; // of all slabs, and the scratch
    uint64_t reserved;    // what its memory had at its largest
    uint64_t scratch, scratch_size;
    bool furnished;
    uint64_t mover; // the kernel that copies and clears
    char *zeros;    // in pinned memory, or NULL

    // A claim looks through these two, and not through the thousand slabs that may be draining or held.
    struct slab_list in_use;   // open or full
    struct slab_list ready;    // the first one for the longest time
    struct slab_list draining; // in the order in which they were sent back
    uint64_t sent;             // so many were
    uint64_t held, largest;    // bytes of those that graphs have, and of one that had the most
    unsigned issuing;          // launches that have a place in one and are not in the stream yet
};

bool hook_begin_memory(struct pool *pool); // in the current context
char *hook_make_zeros(void);               // for the current context
bool hook_free_memory(struct pool *pool);  // what is not in use; false if there was none
struct slab *hook_new_slab(struct pool *pool, uint64_t size, bool copied); // ready, or NULL
bool hook_has_room(struct pool *pool, uint64_t size); // for a new one: others go, if need be

// A ready one of so many bytes: of no more than `enough`, or the smallest. It stays in the list.
struct slab *hook_ready_slab(const struct pool *pool, uint64_t bytes, uint64_t enough, bool copied);

// -- drain.c ---------------------------------------------------------------

// What the probes of a launch saved, as records of the trace.

// Writes a buffer of a slab, which begins at `start` in it. Faults of the device are noted in the slab.
void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size);

// Bytes of a slab, no more than a stage has; NULL if the device fails. Why its buffers are lost then.
const char *hook_fetch(struct slab *slab, uint64_t start, uint64_t size);
const char *hook_why_lost(CUresult failed);
void hook_forget_stage(void); // the slab is used again

// The thread that writes buffers into the trace.

bool hook_begin_writing(void);            // not when the process ends, perhaps within malloc
void hook_write_later(struct slab *slab); // once its event has come
void hook_write_soon(void);               // what comes next is waited for
void hook_wait_no_longer(void);           // what has not come is lost
void hook_lose(struct save *save);        // of a launch that is made while the process ends

// -- graph_nodes.c ---------------------------------------------------------

// The kernel nodes of a graph, and those of them that get probes.

// A node of an executable graph: a kernel, or one with a graph inside.
struct member {
    uint64_t node;  // in the program's graph
    uint64_t named; // in the graph by which the program names it: after an update that of before
    unsigned depth;
    bool is_graph, sure, disabled;
    uint32_t function; // id in the trace; 0: it is not known
    uint32_t block[3], shared;
    struct choice choice;
    const char *reason;          // why it runs without probes; empty: it is not counted
    struct save *save;           // its parameters and buffers; NULL without probes
    uint64_t room;               // bytes from save->offset on
    unsigned set;                // what its buffers are in
    CUDA_KERNEL_NODE_PARAMS own; // the program's, but for what the pointers lead to
};

struct written { // by a node that copies or sets memory
    uint64_t node, start, end;
};

// The nodes of an executable graph. They stay as they are while somebody else has them too.
struct members {
    _Atomic unsigned users;
    size_t count, room;
    struct member *all;
    struct written *written;
    size_t written_count, written_room;
    bool unnamed;  // the program does not name these nodes to the executable graph
    struct tally { // launches without probes of a replay
        uint32_t function;
        const char *reason;
        uint64_t launches;
    } *tallies;
    size_t tally_count, saves; // saves: how many have one
    bool is_tallied;
    unsigned order; // by which they were counted
};

// Reads a graph. Its nodes have saves without a place. NULL: it has no kernel, or memory ran out. `around`
// are those of the graph that it goes into, or NULL.
struct members *hook_read_graph(void *graph, uint64_t context, const struct members *around, bool unnamed);
struct members *hook_copy_members(const struct members *members);
void hook_drop_members(struct members *members);
// By the order by which they have probes, and that of now.
const struct tally *hook_tally(struct members *members, unsigned order, unsigned now);

// Makes a member of a node.
void hook_make_member(struct member *member, const struct graph_node *node, uint64_t context);
void hook_strip_member(struct member *member, const char *reason); // it has no probes

// Memory that nodes write to: a member that has a copy of it cannot have probes.
struct written hook_written_by_set(uint64_t node, const CUDA_MEMSET_NODE_PARAMS_v2 *set);
struct written hook_written_by_copy(uint64_t node, const CUDA_MEMCPY3D *copy);
bool hook_add_written(struct members *members, const struct written *written); // false without memory
bool hook_is_copied(const struct member *member, const struct written *written);
void hook_check_constants(const struct members *members, struct member *member);
extern const char hook_writes_constant[]; // a reason

uint64_t hook_place_members(struct members *members, unsigned set); // bytes of all buffers
void hook_point_members(struct members *members, uint64_t address); // where these are

// The parameters of a node with probes, and without.
CUDA_KERNEL_NODE_PARAMS hook_probed_params(const struct member *member);
struct packed { // for a node whose parameters are
    void *extra[5];
    size_t size;
};
CUDA_KERNEL_NODE_PARAMS hook_own_params(const struct member *member, struct packed *packed);

// Puts the kernels with probes into the program's graph, and the program's back. A node that the driver
// refuses stays as it is.
void hook_dress(struct members *members);
void hook_undress(struct members *members);

// -- graph_replay.c --------------------------------------------------------

// Executable graphs with probes in them.

enum { MOST_SETS = 8 };

struct prepared { // an executable graph
    struct prepared *next;
    uint64_t exec;
    _Atomic unsigned users;
    bool going;           // it is being destroyed
    pthread_mutex_t lock; // of what follows; a call that launches or changes the graph holds it
    uint64_t context;
    struct reference of_context;
    struct members *members;
    struct set {
        struct slab *slab; // or NULL
        uint64_t bytes;
    } sets[MOST_SETS];
    uint64_t mover;   // the kernel that copies and clears
    const char *lost; // why its buffers are of no use any more; NULL: they are
    unsigned order;   // by which it has probes
    bool updated;     // from another graph: the nodes that the program names are those of the first
    bool has_run;
    uint64_t stream; // where it ran last
    uint32_t thread; // of a thread's default stream
    uint64_t ended;  // hook_streams_ended by then
    // Of the launch that is being made
    struct slab *slab;
    uint64_t offset;
    const char *no_room;
    unsigned now;         // the order
    bool captured, quiet; // quiet: it is not recorded
};

struct prepared *hook_take_prepared(uint64_t exec); // locked, or NULL
void hook_put_prepared(struct prepared *graph);

void hook_put_on(struct prepared *graph); // the table
// Takes one off the table; NULL: there is none. With `going` only one that is being destroyed.
struct prepared *hook_take_off(uint64_t exec, bool going);
void hook_mark_exec_going(uint64_t exec, bool going);
void hook_release_prepared(struct prepared *graph);

// Of one that is locked

struct member *hook_find_member(const struct prepared *graph, uint64_t node);
bool hook_own_members(struct prepared *graph);    // nobody else has them then; false without memory
unsigned hook_find_place(struct prepared *graph); // for another set, of sets that no node uses; or MOST_SETS
void hook_let_set_go(struct set *set);
void hook_lose_sets(struct prepared *graph, const char *reason);

extern const char hook_outgrown[], hook_changed_late[]; // reasons

// Launches of graphs, and what they wrote.

extern handler hook_before_replay, hook_after_replay; // cuGraphLaunch

// For the thread that writes: the next node of a replay from `at` on, 0 at first, with its buffers' place in
// the slab; its launch is in the trace then. False: there are no more.
bool hook_next_replayed(const struct save *of, size_t *at, struct save *node);
void hook_end_replay(struct replay *replay);

// -- graph_exec.c ----------------------------------------------------------

// Handlers of what makes and destroys executable graphs, and of calls that read a graph for them.

extern handler hook_before_instantiate, hook_after_instantiate, hook_before_exec_update,
    hook_after_exec_update, hook_before_exec_child, hook_after_exec_child, hook_before_exec_gone,
    hook_after_exec_gone;

// Around a call that gives a graph to a node of an executable graph: its first two arguments.
void hook_before_child(struct frame *frame, uint64_t graph);
void hook_after_child(struct frame *frame);

// A node of an executable graph, which is locked, is to write: kernels with copies of that are taken back.
void hook_take_back_copies(struct prepared *graph, const struct written *written);

// -- launch.c --------------------------------------------------------------

// What launches and the kernel nodes of graphs have in common: the program's parameters, and buffers.

// Counts a launch. Why it runs without probes, as the user wants only some; NULL: it need not.
const char *hook_left_out(struct probed *probed);

// Bytes of a map's buffer for so many blocks; false if that is more than 64 bits can count.
bool hook_map_bytes(const struct woven_map *map, const uint32_t grid[3], const uint32_t block[3],
                    uint64_t *bytes);

// The save of a launch, with its arguments; NULL without memory or where the parameters are not known.
struct save *hook_new_save(struct probed *probed, const struct launch *launch);
void hook_free_save(struct save *save);
bool hook_size_buffers(struct save *save, const struct launch *launch); // false: they are too large
void hook_point_at_buffers(struct save *save, uint64_t address);        // in the arguments

// Handlers of launches, and of what else has to be answered or done for the kernel that runs.

// The launch of a frame, of another function with these parameters; false if the driver refuses it.
bool hook_launch_as(struct frame *frame, uint64_t function, void **params);

extern handler hook_before_launch, hook_after_launch, hook_before_context_ends, hook_before_stream_ends,
    hook_before_capture, hook_before_join, hook_after_capture;

extern _Atomic uint64_t hook_streams_ended; // another stream may have the handle of one of them

// The program's memory comes first: a call that found none is made again without our buffers.
extern handler hook_call_without_buffers;
uint64_t hook_call_again(const struct frame *frame); // with the arguments as they are now; its result

void hook_after_wait(void);  // the program has waited for the GPU
void hook_end_probing(void); // the process ends: what is on its way is awaited

// Launches that ran without probes, by the reason.

// Counts a launch; the reason is a text that stays.
void hook_count_unprobed(uint32_t function, const char *reason);
void hook_count_unprobed_times(uint32_t function, const char *reason, uint64_t launches);
void hook_write_unprobed(void); // what was counted since the last time
uint64_t hook_unprobed_total(void);

// The same text for as long as the process runs, once for all that are alike. NULL without memory.
const char *hook_keep_text(const char *text);

// -- load.c ----------------------------------------------------------------

// Loading a kernel with probes beside the one that the program has.

// Enters a function that runs as it is: the reason is a text that stays, empty for one that is not counted.
void hook_refuse(const struct looked_up *function, const char *reason);

// Enters the function that a kernel has in the current context, and loads the kernel there.
void hook_enter_function(uint64_t function, uint64_t kernel);

// Loads what the pipeline made, and enters it. The answer is used up.
void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer);
void hook_unload_replaced(void); // what was loaded for probes that others replaced, and nobody uses any more
void hook_bind_missed(void);     // kernels that were launched in the current context before they were there

extern handler hook_before_unload, hook_after_unload;

// What is ours in each context: a pool of slabs, with a stream, the kernel that moves, and scratch memory.

extern pthread_mutex_t hook_pools_lock; // of all pools, and of the slabs in them
struct pool *hook_first_pool(void);     // then its `next` ones; NULL: there is none
struct pool *
hook_find_pool(uint64_t context); // which is the current one, under the lock; NULL: there is none

// Of the current context.
uint64_t hook_our_stream(void);        // in which no kernel is; 0: there is none
void hook_furnish(void);               // once, where the program itself loads
uint64_t hook_mover(void);             // 0: there is none
bool hook_make_scratch(uint64_t size); // once; false without room for it
bool hook_flush(uint64_t stream);      // the L2 cache, by setting that memory

// Variables that a kernel with probes shares with the program's module.

// Of a module, or of a library.
bool hook_find_variable(bool is_kernel, uint64_t module, const char *name, uint64_t *address, size_t *size);

// Fills the table of addresses and copies constants, in the current context. False with `missing` set if one
// is not there.
bool hook_share_variables(const struct probed *probed, struct bound *bound, const char **missing);
bool hook_must_copy(const struct bound *bound);
bool hook_copy_variables(const struct bound *bound, uint64_t stream); // that the program may have written to

extern handler hook_after_variable;

// -- measure.c -------------------------------------------------------------

// --benchmark: the same kernel without probes, launched before the one with them.

// Loads it, where the one with probes is loaded, and prepares it for the current context. NULL, or why that
// is not possible.
const char *hook_load_plain(struct probed *probed, const char *name);
const char *hook_bind_plain(const struct probed *probed, struct bound *bound);

// Launches it, between two events, after the L2 cache was flushed, and flushes that again: the launch with
// probes is next. NULL, or why that is not possible.
const char *hook_benchmark(struct frame *frame, struct save *save, const struct choice *choice,
                           uint64_t stream);
void hook_benchmarked(const struct save *save, uint64_t stream); // the launch with probes is in the stream

// The times of both on the GPU, once they have ended; false if they are not known.
bool hook_read_benchmark(const struct save *save, uint64_t *kernel, uint64_t *original);
void hook_forget_benchmark(struct save *save);

// --memusage: what the buffers of launches would need, by function.

// Bytes that the buffers of a launch would need where records are counted only, but for the entries of logs.
bool hook_needed_bytes(const struct woven *woven, const uint32_t grid[3], const uint32_t block[3],
                       uint64_t *bytes);

void hook_count_need(uint32_t function, uint64_t bytes);        // of a launch
void hook_add_need(struct slab *slab, const struct save *save); // of one with probes, which has ended
void hook_write_needs(void);                                    // records of what was counted since

// -- request.c -------------------------------------------------------------

// Functions that were looked up. Where gpt-hook ctl may name other probes, they can be asked for again.

// A look-up has found it; it was asked for by its order if `asked`.
void hook_know(const struct looked_up *function, const char *name, bool asked);
void hook_ask_known(void); // for those of the current context that the last order was not used for

// Whether the last order is about a function, or the function of a kernel; true of one that no look-up named.
bool hook_is_meant(uint64_t handle);

struct known_counts {
    uint64_t probed, pending, refused;
    char others[512]; // names that the order doesn't mean, as many as fit
};
void hook_count_known(struct known_counts *counts);

// Look-ups: each asks for its kernel with probes.

extern handler hook_after_function, hook_after_kernel_function, hook_after_functions, hook_after_kernels;
void hook_finish_lookups(void); // loads what has come meanwhile, without waiting
void hook_end_burst(void);      // of look-ups that wait together

// Kernels whose probes are being made: each is asked for once, whoever looks it up.

// Asks for a kernel with probes, unless that has been done. What the cache has is loaded at once.
void hook_ask_for(const struct looked_up *function, const char *name);
void hook_ask_later(const struct looked_up *function, const char *name); // and loads nothing yet
void hook_await(uint64_t handle); // until it is loaded, as long as --wait allows

// What is asked about a kernel, and what its answer is kept under.

// Both return NULL, or why the kernel cannot get probes: a text that stays.
const char *hook_name_result(const struct looked_up *function, const char *kernel, char key[65]);
const char *hook_send_question(const struct looked_up *function, const char *kernel, struct gpt_call *call);

// -- settings.c ------------------------------------------------------------

// What gpt-hook was asked to probe.

// Whether what is needed to probe is kept. False where nothing ever is, and in a child that was forked after
// something was loaded: that is its parent's.
extern _Atomic bool hook_probing;

// Which probes go into which kernels, from an order on until the next one; it stays.
struct order {
    const struct order *before;
    unsigned number;      // from 1 on
    const char *identity; // digest of the pipeline and its probes, by which the supervisor knows it and
                          // results are kept; NULL: none
    const char *probes, *kernels, *filter; // what the user calls them; NULL: not given
};
const struct order *hook_order(void);
const struct order *hook_order_of(unsigned number);
bool hook_make_order(const struct order *made); // false without memory

// Whether probes have ever been named while calls were recorded. Until then no kernel has any, be it launched
// or in a graph, and there are no buffers and no memory for them.
bool hook_has_probed(void);
bool hook_will_probe(const struct order *order, bool recording); // soon; true if nothing was probed before

struct settings {
    uint64_t wait; // ms that a burst of look-ups waits
    uint64_t skip, count, sample;
    uint64_t memory; // bytes of device memory for buffers; 0: a tenth of what is free
    bool complete;
    bool keeps;     // the stages keep what they make: all is asked for
    bool benchmark; // the kernel without probes is launched, too
    bool memusage;  // records are only counted
};
extern struct settings hook_settings;

void hook_probe_setup(void);
void hook_probe_stop(void);  // nothing is probed any more
void hook_probe_begin(void); // something was loaded: what is known is of this process, not of its children
bool hook_is_this_process(void); // and not a child in its memory, as vfork makes
bool hook_is_wanted(const char *kernel, const struct order *order);
bool hook_is_closed(const char *path); // whether a library is one of those whose code is not looked into

// -- sources.c -------------------------------------------------------------

// PTX that the program had the driver link to a cubin.

extern handler hook_after_link_begun, hook_after_link_data, hook_after_link_file, hook_after_link,
    hook_after_link_end;

// Whether an image is what was linked. Then the text that it was made of is added; none if it was made of
// several.
bool hook_find_linked(const struct image *image, struct gpt_bytes *text);

// Images of modules and libraries that the program loaded, as long as these live.

// Both say of a function or kernel why it cannot get probes, a text that stays, or return NULL.

// What identifies its image: the contents, or of a large one in a file which file that is, and where.
const char *hook_digest_source(uint64_t function, char digest[65]);
// Adds a request about the image, which says what of it. A large one is in a file, the caller's to close;
// else -1.
const char *hook_add_request(uint64_t function, struct gpt_asked *asked, struct gpt_bytes *request,
                             int *file);

extern handler hook_after_load_image, hook_after_load_file;

#endif
