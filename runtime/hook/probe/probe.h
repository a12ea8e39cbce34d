// Kernels with probes: requesting them, loading them, launching them in place of the program's, and draining
// their buffers.

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

// A kernel with probes, as the pipeline has built it: its image and its records.

enum { MOST_MAPS = 64 };

enum { MOST_FIELDS = 64 }; // reduce.c doesn't support maps with more fields
struct woven_field {
    uint16_t offset;
    uint8_t size;
    enum { FIELD_UNSIGNED, FIELD_SIGNED, FIELD_FLOAT } kind;
    uint64_t flip; // bits that are inverted in a total's least or greatest value
};

struct woven_map {
    uint64_t id;                     // in the answer
    uint64_t capacity, stride, head; // head: bytes before a unit's slots
    uint64_t copies; // units of a histogram or table; 0 for other maps, which have units by `level`
    enum { LEVEL_THREAD, LEVEL_WARP, LEVEL_BLOCK } level;
    uint64_t wanted; // capacity wanted by a map whose records are only counted
    bool log;
    bool knows_repeats; // the lowest bit of its address says that the launch may run several times
    bool grows;         // a log that may be larger than its capacity, as the low bits of its address tell
    uint64_t ring;      // bytes of a ring's room, of which each unit claims one; 0 for other maps
    bool has_room;      // a histogram that can count in shared memory: the lowest bit of its address says so
    bool reducible;     // reduce.c can add up what it holds
    struct woven_field *fields; // if it's reducible, and not a histogram
    size_t field_count;
    uint32_t number; // in the trace
};

struct woven_param {
    uint64_t offset, size;
    uint32_t map; // index into the maps, for added parameters
};

struct woven_variable {
    const char *name;
    uint64_t size, offset; // 0 bytes: unknown
    bool constant, always;
    CUdeviceptr address; // its address as added to an image without a table; 0 until then
};

struct woven {
    struct gpt_bytes answer; // the pipeline's whole answer, which contains the image
    uint64_t chosen;         // id of its ptx record
    const void *image;
    size_t image_size;
    const void *plain; // the image without probes, or NULL
    size_t plain_size;
    struct woven_param *params, *added;
    struct woven_map *maps;
    struct woven_variable *variables;
    size_t param_count, added_count, map_count, variable_count;
    size_t param_bytes;         // the kernel's own parameters
    uint32_t cluster[3];        // blocks per entry of a launch's grid
    uint64_t room;              // bytes of dynamic shared memory that a launch may add for its maps
    const char *table;          // variable with the table of addresses, or NULL
    const struct reason *fault; // why it has no probes, or NULL if it has
    uint32_t number;            // the kernel's number in the trace
    uint64_t needed;            // bytes that its largest launch needed in the earlier run, or 0
};

// Return whether the pipeline would give the same answer again. A failure may be temporary, for example if a
// compiler was killed.
bool hook_is_lasting(const struct gpt_bytes *answer);

// If the pipeline generated no code for any kernel of the image, return the reason, and set `record` to the
// record of the answer that has it. Otherwise, return NULL.
const struct reason *hook_read_refusal(const struct gpt_bytes *answer, struct gpt_bytes *record);

// Read an answer, and take ownership of it. Returns NULL if memory runs out.
struct woven *hook_read_woven(struct gpt_bytes *answer, const char *kernel);

// Write its records to the trace. `registers` is the number of registers of the program's kernel, or 0 if it
// isn't known.
void hook_write_woven(struct woven *woven, uint32_t function, unsigned registers);
bool hook_has_growing_log(const struct woven *woven);
void hook_free_woven(struct woven *woven);

// A log begins with counters for each arena.
enum { ROOM_ARENAS = 16, ROOM_APART = 128, ROOM_HEAD = ROOM_ARENAS * ROOM_APART, ROOM_SECTOR = 32 };

// Return the bytes per unit of an array or total.
static inline uint64_t hook_unit_bytes(const struct woven_map *map) {
    return map->capacity ? map->head + map->capacity * map->stride : sizeof(uint64_t);
}

// Return how many units a block has.
static inline uint64_t hook_units(const struct woven_map *map, const uint32_t block[3]) {
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return map->level == LEVEL_THREAD ? threads : map->level == LEVEL_WARP ? (threads + 31) / 32 : 1;
}

// Compute the size of a map's buffer for a grid, in bytes. Returns false if it doesn't fit in 64 bits.
static inline bool hook_map_bytes(const struct woven_map *map, const uint32_t grid[3],
                                  const uint32_t block[3], uint64_t *bytes) {
    unsigned __int128 blocks = (unsigned __int128)grid[0] * grid[1] * grid[2], size;
    if (map->log)
        size = ROOM_HEAD + (unsigned __int128)map->capacity * ROOM_SECTOR;
    else
        size = (map->copies ? map->copies : blocks * hook_units(map, block)) * hook_unit_bytes(map);
    *bytes = (uint64_t)size;
    return size >> 62 == 0;
}

// Records of the pipeline's answers, which are copied to the trace.

uint64_t hook_number_of_map(const struct woven *woven,
                            uint64_t id); // number in the trace, or 0 if there is no such map

// Write a record of an answer to the trace, under its number there. If `function` is 0, there's no function.
// If `before` isn't 0, it's the number of registers of the program's kernel, and is written after the number
// with probes.
void hook_retell(struct cursor from, const struct woven *woven, uint32_t number, uint32_t function,
                 unsigned before);

// -- side_file.c -----------------------------------------------------------

// NAME.buffers, the file next to the trace.

bool hook_put_beside(const void *data, uint64_t size, uint64_t *offset); // false if writing fails
const char *hook_name_beside(void);

// -- mover.c ---------------------------------------------------------------

// Our own kernel, which copies memory and then clears the source.

// Load it into the current context, where it stays as long as the context exists. Returns 0 if the driver
// can't assemble it.
uint64_t hook_load_mover(void);

// Copy and clear memory in a stream. Addresses are multiples of 16, and `bytes` is rounded up to a multiple.
// If there's no mover, or if `to` is 0 (which means to clear only), driver calls are used instead.
bool hook_move(uint64_t mover, uint64_t to, uint64_t from, uint64_t bytes, uint64_t stream);

// -- kernels.c -------------------------------------------------------------

// The table of kernels with probes. It's indexed by the handle of the function or kernel that the program
// has.

struct shared_variable { // in constant memory, so it has to be copied
    uint64_t from, to, size;
    _Atomic bool *taken; // the program has taken its address
};

// A function that the program has looked up.
struct looked_up {
    uint64_t handle, module, context;
    struct reference reference;
    uint32_t function;  // id in the trace
    bool is_kernel;     // a kernel of a library
    unsigned order;     // the order that asked for it
    unsigned registers; // limit on registers per thread with probes; 0: no limit
};

// A kernel with probes in one context, where its code has been loaded, and the addresses of its variables
// have been found. Once the context has been destroyed, another one may reuse its handle.
struct bound {
    struct bound *next;
    uint64_t context;
    struct reference of_context;
    uint64_t function;            // the CUfunction in that context
    int max_threads;              // threads of a block
    int static_shared;            // bytes
    _Atomic uint64_t asked_room;  // by hook_find_room: the last question and its answer
    const struct reason *refused; // why it can't run there, or NULL if it can
    struct shared_variable *variables;
    size_t variable_count;
    uint64_t plain; // with --benchmark: the CUfunction without probes, and its variables
    struct shared_variable *plain_variables;
    size_t plain_variable_count;
};

// The table has the first variant for each handle. Variants with fewer registers are in a list that begins
// there. If a launch can't use the first variant, these are tried in order.
struct probed {
    _Atomic unsigned users; // users of anything that it and its variants have loaded
    _Atomic unsigned order; // the order that asked for it
    uint64_t handle;        // in the program
    struct reference reference;
    uint32_t function; // its id in the trace
    uint64_t
        kernel; // for a CUfunction made from a CUkernel: that kernel, whose entry has all the rest; else 0
    const struct reason *refused; // why it runs without probes, or NULL if it has them
    struct looked_up asked;
    char *name;
    uint64_t probed; // launched in its place
    const struct woven *woven;
    uint64_t module;                      // the program's
    uint64_t loaded;                      // ours
    uint64_t plain, plain_loaded;         // the same without probes, for --benchmark
    unsigned used;                        // registers per thread
    bool is_library;                      // `loaded` is a library, not a module
    bool unloading;                       // its module is being unloaded
    _Atomic(const struct reason *) unfit; // why launches no longer use it although it's loaded, or NULL
    _Atomic(struct bound *) bounds;
    _Atomic(struct probed *) fewer; // the next variant
    _Atomic unsigned limit;         // register limit of the last variant requested; 0: none yet
    _Atomic uint64_t missed;        // context in which a launch wanted it before it was there
    _Atomic uint64_t launches;
    struct probed *first; // the head of this variant's list; NULL if it is the head
    struct probed *next;  // next in the list of all
};

struct probed *hook_find_probed(uint64_t handle); // NULL if unknown
struct probed *hook_find_entry(uint64_t handle);  // also maps a kernel's function to the entry of the kernel

// Keep everything that the kernel has loaded until hook_let_probed_go, even if other probes are named in the
// meantime. Returns false if they have already been named. In that case, only its name in the trace may be
// used.
bool hook_hold_probed(struct probed *probed);
void hook_hold_again(struct probed *probed); // for a kernel that's already held
void hook_let_probed_go(struct probed *probed);

// Return a list of variants in the current context that newer probes have replaced, and that nobody uses.
// Each list is returned only once. Returns NULL if there's none at the moment.
struct probed *hook_take_replaced(uint64_t context);

// Return the kernel in a context, or NULL.
struct bound *hook_find_bound(const struct probed *probed, uint64_t context);

// Add a kernel to the table, which then owns it. Returns false if memory runs out, or if there's already a
// newer entry.
bool hook_add_probed(struct probed *added);
void hook_add_fewer(struct probed *first, struct probed *added);

uint64_t hook_kernel_function(uint64_t kernel,
                              uint64_t context); // the program's CUfunction for a kernel, or 0

// Return the kernel from which a function with this name was made in the current context, or 0 if it isn't
// known.
uint64_t hook_find_kernel(uint64_t function, const char *name);

// Return a kernel that a launch in this context needed before it was ready. Each kernel is returned only
// once. Returns NULL if there are no more.
struct probed *hook_take_missed(uint64_t context);
void hook_miss(struct probed *probed, uint64_t context);

// Mark the kernels of a module before it's unloaded, and unmark them if that fails. If it succeeds,
// hook_next_unloaded returns each unloaded kernel once, and then NULL.
void hook_mark_unloading(uint64_t module, bool unloading);
struct probed *hook_next_unloaded(void);

// The variant that runs in place of the program's kernel.

struct choice {
    struct probed *first,
        *probed; // the handle's entry; the variant that runs, or NULL for the program's kernel
    struct bound *bound;
    uint64_t handle;             // the handle to launch
    const struct reason *reason; // why no variant runs
};

// Choose a variant, and keep it until hook_let_choice_go.
struct choice hook_choose(const struct launch *launch, uint64_t context);
void hook_let_choice_go(const struct choice *choice);

// Return how many bytes of dynamic shared memory a launch needs to have room for its maps. Returns 0 if that
// doesn't fit, or if fewer blocks would then run at once.
uint32_t hook_find_room(const struct choice *choice, const struct launch *launch);

// Count a launch. If the user's options leave it out, return the reason, otherwise NULL.
const struct reason *hook_left_out(struct probed *probed);

// Record that the driver has refused the launch with probes, but not the program's kernel.
void hook_mark_unfit(struct probed *probed, const struct launch *launch, CUresult status);

// If blocks with this many threads can't run in a context, return the reason, otherwise NULL.
const struct reason *hook_find_obstacle(const struct probed *probed, const struct bound *bound,
                                        uint64_t threads);

// Return the maximum number of registers per thread with which a multiprocessor can hold this many blocks of
// this size.
unsigned hook_most_registers(uint64_t threads, uint64_t blocks);
// Have the kernel assembled again with at most this many registers. This doesn't wait for the result. The
// function that makes the request was passed to hook_kernels_setup.
typedef void asks_for_kernel(const struct looked_up *function, const char *name);
void hook_kernels_setup(asks_for_kernel *asks);
void hook_want_fewer(struct probed *first, unsigned registers);

// -- attributes.c ----------------------------------------------------------

// Answers to the program's questions about occupancy.

// Compare a kernel that has just been loaded with the answers that the program has already got about its own
// kernel. Returns NULL if they still hold, else WHY(occupancy).
const struct reason *hook_compare_occupancy(struct probed *probed, const struct bound *bound);

extern handler hook_after_blocks, hook_after_block_size, hook_after_shared, hook_after_clusters;

// If the program sets attributes of its functions and kernels, ours get the same attributes.

bool hook_copy_properties(const struct probed *probed,
                          const struct bound *bound); // false if one can't be set

extern handler hook_after_attribute;

// -- buffers.c -------------------------------------------------------------

// Places for launches in slabs, and slabs for executable graphs.

// Round up to a multiple of 256, at which buffers begin, like places in slabs.
static inline uint64_t hook_rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

enum { BENCHMARK_EVENTS = 4 };
struct replay;
struct demand;
struct pool;

struct save { // a launch with probes: its parameters, and where its buffers are
    struct save *next;
    struct replay *replay;   // for a graph: stands for the launches of all nodes, and has no kernel
    bool repeats;            // the node is in the body of a conditional node, so it may run several times
    bool unpacked;           // only unpacks the parameters of a captured launch: no buffers
    uint8_t size;            // class of its memory, from 1 to SAVE_SIZES; 0: malloc's
    _Atomic unsigned others; // more users, for a node's save
    struct slab *slab;
    struct probed *probed;
    uint32_t id;                       // in the trace; 0: no record (yet), so the buffers are useless
    uint64_t start, stream;            // the `probed` record needs these, too
    uint32_t thread, block_size[3];    // thread: 0 for no record
    uint32_t program_shared;           // bytes of dynamic shared memory that the program asked for
    uint64_t offset;                   // where the first buffer is in the slab
    uint64_t bytes;                    // bytes of all buffers
    uint64_t function;                 // the program's, called if the launch with probes fails
    void **params, **extra;            // also the program's
    char *block;                       // parameters at their offsets
    uint64_t prologue;                 // ticks before the launch
    uint64_t needed;                   // bytes, with --memusage
    uint64_t *sizes;                   // bytes of each map's buffer
    uint8_t *numbers;                  // the number in the lowest bits of each log's address
    uint32_t shared;                   // bytes of dynamic shared memory with room for maps; 0: without
    uint32_t grid[3];                  // blocks
    struct demand *demand;             // NULL without a growing log
    const uint64_t *sums;              // valid until hook_reduce's next call
    bool reduced;                      // only `sums` are written, which hook_reduce found
    uint64_t events[BENCHMARK_EVENTS]; // with --benchmark; 0: none
    CUlaunchConfig config;             // the program's configuration, except for `shared`
    uint64_t given;                    // the argument that `config` or `shared` replaces
    void *arguments[]; // pointers to the values, as cuLaunchKernel takes them; then what the others point to
};

// What a launch needs from a slab
struct claim {
    uint64_t context, stream;
    uint32_t thread;
    bool dependent; // it may start before its predecessor has ended, so nothing may go in between
    bool copied;    // its buffers receive a copy, so they needn't be clear
    uint64_t bytes; // a multiple of 256
};

// Find buffers for a launch in a stream. They're filled with zeros, unless the claim says that data will be
// `copied` to them. If no buffer is free, returns NULL and sets `reason`. After the launch call, whether it
// succeeded or not, the caller must pass the slab to hook_issue.
struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const struct reason **reason);
// Wait until an earlier launch with the same demand has been counted. With --complete, wait for the end of
// that launch; otherwise, only wait for launches that have ended but haven't been read. Returns the maximum
// size of this launch's buffers: half of the memory, or all of it if later launches can wait for it.
uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand);
uint64_t hook_slab_address(const struct slab *slab);
void hook_make_next(const struct slab *like); // prepare the next slab; the caller has places in this one
void hook_issue(struct slab *slab, struct save *save); // save is NULL if the launch failed

// Allocate buffers for an executable graph in the current context. They're filled with zeros once the slab is
// ready. After each replay they're copied to another slab, and the event of this slab shows when the last
// replay has ended. `replaced` is how many bytes the graph is about to release. If there's no memory, returns
// NULL and sets `reason`.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const struct reason **reason);
void hook_let_go(struct slab *slab); // once its event has completed

// -- saves.c ---------------------------------------------------------------

// The save of a launch, or of a node in a graph: the program's parameters, and the buffers.

// Make the save of a launch, with its arguments. Returns NULL if memory runs out, or if the parameters aren't
// known.
struct save *hook_new_save(struct probed *probed, const struct launch *launch);
void hook_free_save(struct save *save);
bool hook_write_launch(struct save *save); // write its `probed` record, once; false if that fails
bool hook_size_buffers(struct save *save, const struct launch *launch); // false if they are too large
void hook_point_at_buffers(struct save *save, uint64_t address);        // in the arguments

// How many sectors launches have claimed in their logs, so that the next launch of the same kernel gets logs
// that are large enough.

// There's one for each kernel, grid and block. Launches share it, and it's never freed.
struct demand;

// Return NULL if the kernel has no log that grows, or if memory runs out. `earlier` is set to the demand that
// says how large the logs must be: for the same grid and block, or else for all launches of the kernel. It's
// set to NULL if this is the first launch of the kernel.
struct demand *hook_find_demand(const struct save *save, const uint32_t block[3],
                                const struct demand **earlier);
bool hook_is_counted(const struct demand *demand); // true if any launch has been counted

// Record the capacity that a launch would have needed for the log of this map. Don't call it with
// hook_pools_lock held.
void hook_count_sectors(struct demand *demand, uint32_t map, uint64_t sectors);

// Set the sizes of a launch's logs according to what earlier launches claimed, as long as all buffers fit in
// `most` bytes. A log never gets smaller than the capacity of its map. Returns false if the total hasn't
// become smaller.
bool hook_size_logs(struct save *save, uint64_t most);

// -- rooms.c ---------------------------------------------------------------

uint64_t hook_rooms_claimed(const char *head); // bytes of all claims, even of rooms that did not fit

typedef const char *fetch_part(struct slab *slab, uint64_t start, uint64_t size);

struct rooms {         // a log that's being written to the trace
    fetch_part *fetch; // reads part of a slab
    struct slab *slab;
    uint64_t start, arena; // place in the slab, and bytes of an arena there
    uint64_t size;         // in the trace
    uint64_t ends[ROOM_ARENAS];
    uint64_t dropped, needed; // entries; sectors that would have been enough
    uint64_t entries;         // in the parts read so far
    uint64_t first, last;     // the least and the largest unit in the rooms read so far
    uint64_t next, room_end;  // the next record or room, and where its room ends
    char head[ROOM_HEAD];     // as in the trace
};

// Read the counters at the beginning of a log. Returns false if the device fails.
bool hook_open_rooms(struct rooms *log, fetch_part *fetch, struct slab *slab, const struct save *save,
                     const struct woven_map *map, uint64_t start);
// Read the next part of a log, in the form that it has in the trace. The result is valid until the next call.
// It's NULL if the device fails.
const char *hook_read_rooms(struct rooms *log, uint64_t at, uint64_t length);

// -- reduce.c --------------------------------------------------------------

// Launches after the first N of --detail. Only the sums of their buffers are kept.

enum { SUM_COUNTS = 3, SUM_FIELD = 3 + 65 }; // words of sums: before the fields, and for each
void hook_load_reducer(struct pool *pool);   // in the pool's context, which is current

// For the thread that writes, in the slab's context: count these launches, and reduce as many of those
// without detail as fit at once. Returns how many it has looked at, which is at least 1.
size_t hook_reduce(struct slab *slab, struct save **saves, size_t count);
// Write the sums of a launch for a map, which begin at `sums`. Returns the number of words.
uint64_t hook_write_sums(const struct save *save, const struct woven_map *map, const uint64_t *sums);

// -- slabs.c ---------------------------------------------------------------

// Pieces of device memory, and how they change hands. slabs.c explains the states and events.

struct slab {
    TAILQ_ENTRY(slab) link; // in the pool's list for its state
    struct pool *pool;
    uint64_t address, size;
    _Atomic uint64_t places; // while claims may take places in it: see hook_used
    uint64_t number;         // its number among the pool's drained slabs
    uint64_t round;          // the last walk through slabs in use that looked at it
    uint64_t event;          // in the program's stream, after the last launch
    uint64_t cleared;        // in our stream: the slab may be written to
    uint64_t stream;         // the stream whose launches have places in it
    _Atomic uint64_t issued; // time stamp by which the last of them was in the stream
    uint64_t seen;           // ns: the writer saw launches in it; 0 if it didn't. Only the writer uses it
    uint32_t thread;         // if it's a per-thread default stream: the thread
    bool full;               // takes no more launches
    bool ended;              // all of them have ended: there's no event to wait for
    bool known_ready;        // the host knows that it's clear; otherwise ask the event
    bool copied;             // holds copies of what graphs wrote, so it needn't be cleared for those
    bool written_late;       // a launch into it may have begun after its event: never used again
    bool recorded;           // its event already follows its last launch
    CUresult refused;        // why its stream took no event
    uint64_t context, ours;  // where it lives, and the stream that clears it
    char **stage, **zeros;   // the context's staging buffer for the writer, and its zeros to clear from
    CUresult failed;         // device error: don't reuse
    enum slab_state {        // 0 is no state
        SLAB_BARE = 1,
        SLAB_TAKEN,
        SLAB_READY,
        SLAB_CLAIMED,
        SLAB_HANDED,
        SLAB_MARKING,
        SLAB_ISSUED,
        SLAB_COPYING,
        SLAB_HELD,
        SLAB_RETIRED,
        SLAB_STATES
    } state;
    struct save *saves, *last;    // launches that are in the stream, oldest first
    struct save *_Atomic arrived; // the latest of them, newest first; ARRIVED_CLOSED unless it's claimed
};

enum slab_event {
    SLAB_TAKE,     // a thread takes the slab, to call the driver for it
    SLAB_CLAIM,    // for a stream
    SLAB_HOLD,     // for a graph
    SLAB_PUT_BACK, // the slab is free, and has memory
    SLAB_FREED,    // it has no memory
    SLAB_HAND,     // to the marking thread
    SLAB_MARK,     // its event is put into its stream
    SLAB_REFUSE,   // the stream takes no event for now
    SLAB_SEND,     // to the writer
    SLAB_COPY,     // its event has completed or failed
    SLAB_RETIRE,   // nobody may use it again
    SLAB_EVENTS
};

TAILQ_HEAD(slab_list, slab);

// Launches take places in a slab without the lock, so everything that they change is in a single word: how
// much is left, in units of 256 bytes; a hash that distinguishes streams; whether the slab is open; and how
// many launches have a place, but aren't in the stream yet.
enum {
    PLACE = 256,
    PLACES_LEFT = 32, // bits to shift
    PLACES_STREAM = 11,
    PLACES_OPEN = 1 << 10,
    PLACES_ISSUING = PLACES_OPEN - 1,
};
static inline uint64_t hook_used(const struct slab *slab) {
    return slab->size - (slab->places >> PLACES_LEFT) * PLACE;
}
static inline unsigned hook_issuing(const struct slab *slab) {
    return (unsigned)(slab->places & PLACES_ISSUING);
}

// The body of the loop may remove the slab from the list.
#define EACH_SLAB(slab, list)                                                                                \
    for (struct slab *slab = TAILQ_FIRST(list), *next; slab && (next = TAILQ_NEXT(slab, link), true);        \
         slab = next)

// The memory for buffers in a context, in slabs. Pools are never freed.
struct pool {
    struct pool *next;
    struct reference reference;
    bool made; // false while a thread is making it
    uint64_t context, stream;
    CUdevice device;
    uint64_t memory;      // the driver's pool
    char *stage;          // freed with the context
    uint64_t bytes, most; // all slabs and the scratch memory
    uint64_t extra;       // bytes allocated in addition, briefly
    uint64_t reserved;    // the most that the driver's pool has held
    uint64_t scratch, scratch_size;
    _Atomic bool furnished;
    uint64_t mover;         // the kernel that copies and clears
    uint64_t reducer, area; // with --detail: the kernel that adds up, and its memory
    char *zeros;            // in pinned memory, or NULL

    // A claim searches in_use and ready only, not the thousands of slabs that may be draining or held.
    struct slab_list in_use;   // claimed
    struct slab_list ready;    // longest ready first
    struct slab_list draining; // handed, marking, issued and copying, in order of arrival
    struct slab_list bare, retired;
    uint64_t sent;                 // number of slabs sent to be drained
    uint64_t wanted;               // size of a slab that the marking thread should make for later launches
    uint64_t held, largest;        // bytes of slabs held by graphs; the size of the largest
    unsigned count[SLAB_STATES];   // slabs in each state
    bool making;                   // a thread is making the scratch memory
    TAILQ_HEAD(, waiting) waiting; // calls that wait for a slab, first one first
    unsigned patience;             // seconds that one may wait for the driver
    bool stuck,
        uncounted; // a wait for a slab or count was given up: don't wait again before a slab comes back
};

extern pthread_mutex_t hook_pools_lock;   // guards all pools and their slabs
extern pthread_cond_t hook_pools_changed; // a slab's state, or something else that threads wait for
extern unsigned hook_slabs_issued;        // how many are in that state
extern bool hook_pools_end;               // the process is ending: no more claims
extern bool hook_slabs_given_up;          // True once slabs in flight were given up
enum { PATIENCE = 60 };                   // seconds of waiting for the driver, at first

// The progress of our threads, for calls that wait for them
extern _Atomic unsigned hook_waits;    // calls that may wait for launches with a place to be in their streams
extern _Atomic uint64_t hook_progress; // steps of slabs that are coming back, and pieces of them read

struct pool *hook_first_pool(void); // or NULL; follow `next` for the others
// Return the pool of the current context, which is created if necessary. Returns NULL if that fails. Don't
// hold the lock.
struct pool *hook_make_pool(uint64_t context);
bool hook_add_scratch(struct pool *pool, uint64_t size); // once; false without room. Don't hold the lock
void hook_wake_claims(void);                             // don't hold the lock
struct pool *hook_pool_here(void); // the current context's, or NULL. Don't hold the lock
char *hook_make_zeros(void);       // for the current context
CUresult hook_zero_slab(const struct slab *slab, uint64_t bytes); // zero the first bytes, in our stream

// These must be called with the lock held. If a function is marked as "calls", it calls the driver, and
// doesn't hold the lock during that time.

void hook_step(struct slab *slab, enum slab_event event);
// Prevent launches from taking places in a claimed slab, before it's handed, marked or sent. Returns false if
// a launch has a place but isn't in the stream yet; with `even_then`, the slab is closed nevertheless.
bool hook_seal(struct slab *slab, bool even_then);
void hook_unseal(struct slab *slab);
void hook_collect(struct slab *slab); // close `arrived`, and add it to the slab's saves
int hook_begin_calls(void);           // drops the lock to call the driver
void hook_end_calls(int mode);
struct pool *hook_find_pool(uint64_t context); // or NULL
bool hook_free_ready(struct pool *pool);       // calls; frees ready slabs; false: it had none
bool hook_free_memory(struct pool *pool);      // calls; also gives unused memory back to the driver
// Make a slab, in the state TAKEN (calls). While it calls the driver, `calls` is set, unless that's NULL.
// Returns NULL if there's no memory.
struct slab *hook_new_slab(struct pool *pool, uint64_t size, bool copied, _Atomic bool *calls);
void hook_prepare_slab(struct pool *pool, uint64_t size, bool copied,
                       _Atomic bool *calls);           // make a slab for later, unless one is ready
bool hook_make_room(struct pool *pool, uint64_t size); // calls; for a new slab; frees ready ones if needed

// Find a ready slab of at least `bytes`: one with at most `enough` bytes, or else the smallest. It stays
// ready.
struct slab *hook_ready_slab(const struct pool *pool, uint64_t bytes, uint64_t enough, bool copied);

// -- marks.c ---------------------------------------------------------------

// Events after the launches of a slab, and waits for slabs.

bool hook_begin_marking(void); // starts the thread that puts events into streams

// Call these before and after a call that may begin to capture this stream. In between, no event of ours is
// put into streams on behalf of other calls.
void hook_hold_drains(uint64_t stream);
void hook_let_drain(void);

// Everything below must be called with the lock held.

extern uint64_t hook_rounds; // walks through slabs in use, each of which looks at a slab once

// The thread that writes (drain.c): whether it's needed, and what it's doing.
extern pthread_cond_t hook_news;
extern bool hook_is_awaited;           // a call of the program waits for the writer
extern uint64_t hook_looks;            // number of passes in which no slab had a completed event
extern _Atomic bool hook_writer_calls; // the writer is in a call of the driver
void hook_write_later(void);           // tells the writer that a slab was issued
void hook_write_soon(void);            // tells the writer that somebody waits for the next slabs

struct timespec hook_in_ns(int ns);

// We stop waiting after a number of seconds in which only the driver or the program could have ended the
// wait.
struct patience {
    unsigned seconds, left;
    bool by_clock;       // count seconds by the clock alone: our threads may be unable to continue
    struct timespec end; // when this second ends
    uint64_t progress, looks;
};
struct patience hook_patience_of(unsigned seconds, bool by_clock);
// Wait until a slab may have been given back. With `soon`, wait only for a moment. Returns false once the
// caller's patience has run out.
bool hook_wait_for_return(struct patience *patience, bool soon);
// Return whether a slab is being given back, or may be soon. A slab isn't sent while a launch into it is
// being made, and if another thread has taken a slab, it may keep it or not.
bool hook_may_return(const struct pool *pool);
bool hook_any_issuing(const struct pool *pool); // True if a launch has a place but isn't in the stream yet

static inline bool hook_is_of(const struct slab *slab, uint64_t stream, uint32_t thread) {
    return slab->stream == stream && (stream != CU_STREAM_PER_THREAD_HANDLE || slab->thread == thread);
}
#define ARRIVED_CLOSED ((struct save *)1)
static inline bool hook_has_saves(const struct slab *slab) {
    const struct save *arrived = slab->arrived;
    return slab->saves || (arrived && arrived != ARRIVED_CLOSED);
}
static inline bool hook_is_filled(const struct slab *slab) {
    return slab->state == SLAB_CLAIMED && (hook_used(slab) || hook_has_saves(slab));
}

CUresult hook_put_event(const struct slab *slab, bool by_name); // don't hold the lock
void hook_send(struct slab *slab);                              // its launches have an event, or have ended
void hook_hand(struct slab *slab);                              // to the marking thread
void hook_want_slab(struct pool *pool, uint64_t size);          // asks the marking thread for a slab
bool hook_is_marking(const struct pool *pool);                  // the marking thread is in a call for it
void hook_mark(struct slab *slab);                              // calls; within a call about its stream
// Mark a slab of the caller's stream: a full slab, or any slab if `any` is set. This calls the driver. In
// each round, a slab is marked only once, because its stream may be captured. Returns false if there are no
// more.
bool hook_mark_next(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round);
void hook_mark_stream(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round);
// Take the slabs of the caller's stream back from the marking thread, which doesn't get them again in its
// current pass. Returns true if there were any, or if it had to wait for one.
bool hook_recall(struct pool *pool, uint64_t stream, uint32_t thread);
// Send slabs of other streams, so that later launches can use them (calls).
void hook_drain_others(struct pool *pool, const struct claim *claim, uint64_t round);

// -- moments.c -------------------------------------------------------------

// The moments at which slabs leave their streams.

enum moment { ON_THE_WAY, MEMORY_NEEDED, CONTEXT_ENDS, PROCESS_ENDS };

// Send the slabs of a stream that's about to be captured, or destroyed (`ends`). Call this inside the call
// that does that.
void hook_drain_stream(uint64_t stream, uint32_t thread, bool ends);

struct waited {     // the work that a call of the program has waited for
    uint64_t since; // the time before which this work was issued
    uint64_t stream;
    bool all; // all streams of the current context
    uint32_t thread;
};
void hook_drain_waited(const struct waited *waited); // all slabs in use; without an event if they ended
// Drain the slabs of a context, or of all contexts if it's 0, and wait until that's done. Give up on a driver
// that takes a minute.
void hook_drain_all(enum moment moment, uint64_t context);

// The process is ending, possibly in a signal handler that has interrupted a driver call: report buffers that
// are in flight as lost.
void hook_abandon_pending(bool within_driver);
bool hook_give_slabs_back(void); // frees the current context's clean slabs; false if it had none

// -- drain.c ---------------------------------------------------------------

// The data that probes saved, as records of the trace.

// Write a buffer that begins at `start` in the slab. Errors of the device are stored in the slab.
void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size);

// Return bytes of a slab, at most as many as fit in the staging buffer. Returns NULL if the device fails;
// hook_why_lost then returns why buffers are lost.
const char *hook_fetch(struct slab *slab, uint64_t start, uint64_t size);
const char *hook_fetch_only(struct slab *slab, uint64_t start, uint64_t size); // reads no more than that
const struct reason *hook_why_lost(CUresult failed);
void hook_forget_stage(void); // the slab is about to be reused

// --memusage: count how much a launch with probes needed, once it has ended.
void hook_add_need(struct slab *slab, const struct save *save);

// The thread that writes buffers to the trace.

bool hook_begin_writing(void);     // don't call this while the process ends, possibly inside malloc
void hook_lose(struct save *save); // for a launch made while the process is ending

void hook_wait_no_longer(void); // under hook_pools_lock: treat everything still in flight as lost

// -- saves.c ---------------------------------------------------------------

// The saves of a graph's nodes.

// For the writer thread: get the next node of a replay, with the place of its buffers in the slab, and write
// its launch to the trace. `at` must be 0 at first. Returns false if there are no more.
bool hook_next_replayed(const struct save *of, size_t *at, struct save *node);
void hook_end_replay(struct replay *replay);

// -- graph_change.c --------------------------------------------------------

// Handlers of calls that change single nodes, in executable graphs and in graphs that the program is
// building.

extern handler hook_before_exec_kernel, hook_after_exec_kernel, hook_before_exec_node, hook_after_exec_node,
    hook_after_node_enabled, hook_before_exec_copy, hook_before_exec_set, hook_before_packed,
    hook_after_packed;

// -- graph_exec.c ----------------------------------------------------------

// Handlers of calls that make or destroy executable graphs, or update one from a graph.

extern handler hook_before_instantiate, hook_after_instantiate, hook_before_exec_update,
    hook_after_exec_update, hook_before_exec_child, hook_after_exec_child, hook_before_exec_gone,
    hook_after_exec_gone;

// -- graph_replay.c --------------------------------------------------------

extern handler hook_before_replay, hook_after_replay; // cuGraphLaunch

// -- launch.c --------------------------------------------------------------

// Handlers of launches, and of other calls whose answer depends on which kernel runs.

extern handler hook_before_launch, hook_after_launch, hook_before_context_ends, hook_before_stream_ends,
    hook_before_capture, hook_before_join, hook_after_capture;

// The number of streams that have ended. A new stream may reuse an old handle.
extern _Atomic uint64_t hook_streams_ended;

// The program's memory comes first: if a call runs out of memory, we free our buffers and repeat it.
extern handler hook_call_without_buffers;

handler hook_after_wait;     // for calls in which the program waits for the GPU
void hook_end_probing(void); // called when the process ends: waits for buffers in flight

// -- load.c ----------------------------------------------------------------

// Loading kernels with probes, in addition to the program's.

// Register a function that runs without probes. If the reason is UNCOUNTED, its launches aren't counted.
void hook_refuse(const struct looked_up *function, const struct reason *reason);

// Register the function (CUfunction) of a kernel in the current context, and prepare the kernel there.
void hook_enter_function(uint64_t function, uint64_t kernel);

// Load a result of the pipeline, and register it. This takes ownership of the answer.
void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer);
void hook_unload_replaced(void); // unload kernels that newer probes replaced and nobody uses any more
void hook_bind_missed(void);     // prepare kernels that launches in the current context wanted too early

extern handler hook_before_unload, hook_after_unload;

// The state of each context: a pool of slabs, our stream, the mover kernel, and scratch memory.

// For the current context:
uint64_t hook_our_stream(void); // or 0; no kernel ever runs in it. Makes the pool if it's missing
void hook_furnish(void);        // call this once, inside a load call of the program
uint64_t hook_mover(void);      // or 0

// The variables that a kernel with probes shares with the program's module.

// Fill the table of addresses and copy constants in the current context. Returns NULL, or the reason why the
// kernel can't use the variables of the program's module there.
const struct reason *hook_share_variables(const struct probed *probed, struct bound *bound);
bool hook_must_copy(const struct bound *bound);
bool hook_copy_variables(const struct bound *bound, uint64_t stream); // those the program may have written to

extern handler hook_after_variable;

// -- measure.c -------------------------------------------------------------

// --benchmark: launch the same kernel without probes before the one with probes.

// Load it into the same context as the kernel with probes, and prepare it there. Both return NULL, or the
// reason if that failed.
const struct reason *hook_load_plain(struct probed *probed, const char *name);
const struct reason *hook_bind_plain(const struct probed *probed, struct bound *bound);

// Flush the L2 cache, launch the kernel without probes between two events, and flush the cache again, to be
// ready for the launch with probes. Returns NULL, or the reason if that failed.
const struct reason *hook_benchmark(struct frame *frame, struct save *save, const struct choice *choice,
                                    uint64_t stream);
// Call this when the launch with probes is in the stream.
void hook_benchmarked(const struct save *save, uint64_t stream);

// Read the GPU times of both kernels after they've ended. Returns false if they aren't known.
bool hook_read_times(const struct save *save, uint64_t *kernel, uint64_t *original);
static inline bool hook_read_benchmark(const struct save *save, uint64_t *kernel, uint64_t *original) {
    return save->events[0] && hook_read_times(save, kernel, original);
}
void hook_forget_events(struct save *save);
static inline void hook_forget_benchmark(struct save *save) {
    if (save->events[0])
        hook_forget_events(save);
}

// --memusage: count how many bytes the buffers would need, by function.

// Compute how many bytes the buffers of a launch would need, in a kernel that only counts records. The
// entries of logs aren't included.
bool hook_needed_bytes(const struct woven *woven, const uint32_t grid[3], const uint32_t block[3],
                       uint64_t *bytes);

void hook_count_need(uint32_t function, uint64_t bytes); // for one launch
void hook_write_needs(void);                             // writes the counts since the last call as records

// -- pack.c ----------------------------------------------------------------

// Packs what probes saved. Only one thread may do so.

enum { PACK_MOST = 4 << 20 }; // bytes at once

struct packing {
    const void *data; // valid until the next call
    uint64_t size;
    const char *codec; // as in a `buffer` record
    uint64_t row;      // if these are columns
};

// Return the number of bytes in a row of columns for records of this size, or 0 if they're too large.
uint64_t hook_pack_row(uint64_t record);

// Pack bytes: as columns if `row` isn't 0, and with zstd unless `quick`. Returns false if that saves less
// than an eighth.
bool hook_pack(const void *data, uint64_t size, uint64_t row, bool quick, struct packing *packed);

struct linker { // functions of libc
    void *(*open)(const char *, int);
    int (*close)(void *);
    void *(*symbol)(void *, const char *);
};

// Load zstd, if it's installed. Call this before the program starts, when no other thread can hold a lock of
// the dynamic linker.
void hook_zstd_setup(const struct linker *linker);

// -- request.c -------------------------------------------------------------

// Functions that the program has looked up. They're remembered so that gpt-hook ctl can ask for other probes
// later.

// Remember a function. `asked` says whether it has been requested for the current order.
void hook_know(const struct looked_up *function, const char *name, bool asked);
void hook_ask_known(void); // ask for functions of the current context that the last order hasn't covered

// Return whether the last order is about this function or its kernel. If it was never looked up by name,
// return true.
bool hook_is_meant(uint64_t handle);

struct known_counts {
    uint64_t probed, pending, refused;
    char others[512]; // names that the order doesn't cover, as many as fit
};
void hook_count_known(struct known_counts *counts);

// Handlers of loads, and of look-ups, which request the kernel with probes.

extern handler hook_after_load_image, hook_after_load_file, hook_after_function, hook_after_kernel_function,
    hook_after_functions, hook_after_kernels;
void hook_finish_lookups(void); // load results that have arrived, without waiting

// A series of look-ups, which ends with a launch, has a common time limit.
extern _Atomic uint64_t hook_burst_spent; // ms waited in it
static inline void hook_end_burst(void) {
    if (atomic_load_explicit(&hook_burst_spent, memory_order_relaxed))
        atomic_store_explicit(&hook_burst_spent, 0, memory_order_relaxed);
}

// Kernels whose probes are being built. Each is requested only once, however many threads look it up.

// Request a kernel with probes, unless it has been requested before. If the result is in the cache, it's
// loaded immediately.
void hook_ask_for(const struct looked_up *function, const char *name);
asks_for_kernel hook_ask_later;   // doesn't load anything yet
void hook_await(uint64_t handle); // waits until the kernel is loaded, at most for --wait

// -- question.c ------------------------------------------------------------

// The request for a kernel, and the key of its result in the cache.

void hook_request_setup(void (*at_exit)(void)); // sets the function to run at exit if a kernel was requested

struct answer_keys { // in the cache; empty if nothing is cached
    char kernel[65]; // digest of the answer about the kernel
    char image[65];  // digest of the answer about its whole image; never empty
};

// Both return NULL, or the reason why the kernel can't get probes.
const struct reason *hook_name_result(const struct looked_up *function, const char *kernel,
                                      struct answer_keys *keys);
const struct reason *hook_send_question(const struct looked_up *function, const char *kernel,
                                        struct gpt_call *call);

// -- settings.c ------------------------------------------------------------

// The user's settings for probes.

// True if we keep the data that's needed for probes. It's always false if nothing can be probed, and in a
// child that was forked after something had been loaded, because our state belongs to the parent.
extern _Atomic bool hook_probing;

// An order says which probes are put into which kernels, until the next one. It's never freed.
struct order {
    const struct order *before;
    unsigned number;      // from 1 on
    const char *identity; // digest of the pipeline and its probes: names it to the supervisor and in the
                          // cache; NULL: no probes
    const char *probes, *kernels, *filter; // as the user typed them; NULL: not given
};
extern const struct order *_Atomic hook_last_order;
static inline const struct order *hook_order(void) {
    return atomic_load_explicit(&hook_last_order, memory_order_acquire);
}
const struct order *hook_order_of(unsigned number);
bool hook_make_order(const struct order *made); // false if memory runs out

// Return whether probes have ever been named while recording was on. Until then, no kernel has probes,
// whether it's launched directly or in a graph, and no memory is reserved.
bool hook_has_probed(void);
bool hook_will_probe(const struct order *order, bool recording); // about to probe; true the first time

struct settings {
    uint64_t wait; // ms that a burst of look-ups may wait
    uint64_t skip, count, sample;
    uint64_t detail; // launches of a kernel and grid that keep all that was saved
    uint64_t memory; // device memory for buffers, in bytes; 0: a tenth of what's free
    bool complete;
    bool keeps;        // stages keep their output (--keep): request everything
    bool benchmark;    // also launch the kernel without probes
    bool memusage;     // only count records
    const char *rerun; // the trace of an earlier run, or NULL
};
extern struct settings hook_settings;

void hook_probe_setup(void);
void hook_probe_stop(void);      // stop probing for good
void hook_probe_begin(void);     // when something was loaded: initializes this process, but not its children
bool hook_is_this_process(void); // false in a child that shares our memory, as after vfork
bool hook_is_wanted(const char *kernel, const struct order *order);
bool hook_is_closed(const char *path); // true if the library's code is closed, so we leave it alone

// -- rerun.c ---------------------------------------------------------------

// Return how many bytes the kernel's largest launch needed in an earlier run, or 0 if that isn't known.
uint64_t hook_needed_before(const char *kernel);

// -- sources.c -------------------------------------------------------------

// PTX from which the driver has linked a cubin for the program.

extern handler hook_after_link_begun, hook_after_link_data, hook_after_link_file, hook_after_link,
    hook_after_link_end;

// Return whether an image is the result of a linker. If it was made from a single PTX module, append the text
// of that.
bool hook_find_linked(const struct image *image, struct gpt_bytes *text);

// The images of the modules and libraries that the program has loaded.

// Both return NULL, or a constant text that says why a function or kernel can't get probes.

// Compute a digest that identifies its image: of the contents, or for a large image in a file, of the file
// and the position.
const struct reason *hook_digest_source(uint64_t function, char digest[65]);
// Append the request about the image, which names the part that's needed. For a large image, this returns a
// file descriptor, which the caller has to close; otherwise -1.
const struct reason *hook_add_request(uint64_t function, struct gpt_asked *asked, struct gpt_bytes *request,
                                      int *file);

// The pipeline's answer about a whole image. `key` identifies the answer: it depends on the image, the
// pipeline and the device.

// Find the answer about a function's image. Returns false if it isn't known; in that case, hook_refuse_image
// has to be called with the answer from the cache. `reason` is set to the reason why no kernel of the image
// gets probes, or to NULL if some may.
bool hook_find_refusal(uint64_t function, const char key[65], const struct reason **reason);
// Remember the answer. Returns the reason with which launches are counted.
const struct reason *hook_refuse_image(uint64_t function, const char key[65], const struct reason *reason);

// Keep the image that has just been loaded. Returns false if there's none.
bool hook_keep_loaded_image(struct frame *frame);
bool hook_keep_loaded_file(struct frame *frame);

#endif
