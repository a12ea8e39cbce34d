// What the program does with the driver: objects, contexts, modules, graphs, streams, libraries, call stacks,
// NVTX, ioctl.

#ifndef GPT_WATCH_H
#define GPT_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <wchar.h>

#include "abi/cuda.h"
#include "abi/nvtx.h"
#include "hook/write/write.h"
#include "suffixes.h"

// -- for all ---------------------------------------------------------------

// A call of a driver function, as handlers see it.

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

// -- contexts.c ------------------------------------------------------------

// Handlers of the functions that make and end contexts.

uint64_t hook_current_context(void); // of this thread, or 0
extern handler hook_on_context_retained, hook_on_context_made, hook_on_context_destroyed,
    hook_on_context_reset, hook_on_context_released, hook_before_context_gone;

// -- driver.c --------------------------------------------------------------

// The devices.

void hook_see_device(int device); // writes its record

// -- graphs.c --------------------------------------------------------------

// Streams that the program captures: work that goes into them becomes a graph, and does not run.

extern _Atomic uint32_t hook_captures; // that may be under way

static inline bool hook_is_capturing(void) {
    return atomic_load_explicit(&hook_captures, memory_order_relaxed) != 0;
}

bool hook_has_captured(void); // any stream was, at some time

// Whether a stream is captured, which a call that has just returned well was about.
bool hook_is_captured(uint64_t stream);

bool hook_begin_capture(void); // whether it is the first
void hook_end_capture(void);

// What nodes of graphs do beside launching kernels: copies, memsets, functions of the host, memory.

#define MAX_OPERATIONS 1024 // different ones of a graph

struct graph_work {
    uint8_t what; // enum in graphs.c; 0: nothing that counts
    uint64_t bytes, address;
};

struct graph_sums {
    size_t count;
    struct gpt_operation operations[MAX_OPERATIONS];
};

struct graph_work hook_work_of(void *node, int type); // CU_GRAPH_NODE_TYPE_*
struct graph_work hook_work_of_copy(const CUDA_MEMCPY3D *copy);
struct graph_work hook_work_of_set(const CUDA_MEMSET_NODE_PARAMS_v2 *set);
void hook_add_work(struct graph_sums *sums, const struct graph_work *work);

// Handlers of the functions that make graphs; and the nodes of a graph.

extern handler hook_on_instantiate, hook_on_exec_update, hook_on_graph, hook_on_captured, hook_on_node;
extern handler hook_on_exec_kernel, hook_on_exec_child, hook_on_exec_node, hook_on_node_enabled;
extern handler hook_on_exec_copy, hook_on_exec_set;

struct graph_node {
    void *handle;
    int type;
    unsigned depth;                 // how many nodes it is inside of
    bool sure;                      // it runs once; else it is in the body of a conditional node
    CUDA_KERNEL_NODE_PARAMS kernel; // of a kernel node; all zero if the driver does not say
};

// Shows each node of a graph, and after it those of the graphs inside of it, until `see` returns false.
void hook_walk_graph(void *graph, bool (*see)(const struct graph_node *node, void *with), void *with);

// -- ioctl.c ---------------------------------------------------------------

// What the driver asks the kernel for.

void hook_ioctl_setup(void);
extern bool hook_ioctl_wanted;
int hook_record_ioctl(int (*real)(int, unsigned long, ...), int file, unsigned long request, void *argument);

// -- libraries.c -----------------------------------------------------------

// The shared libraries of the process.

void hook_scan_libraries(void);
void hook_before_close(const void *handle);
void hook_after_close(void);
const char *hook_find_library(const void *address); // whose code or data it is in, or NULL
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size);
// Changes when a library is closed: another one may come to lie where it was.
uint64_t hook_unwind_generation(void);

// -- linker.c --------------------------------------------------------------

// What the dynamic linker loaded, and its symbols.

#define MAX_LINKED 8192 // libraries that are looked at: a list that changes may have no end
struct linked {
    uintptr_t address, dynamic; // what is added to addresses in the file; the dynamic section
    const char *name;           // a path, "" for the program
    const void *map, *next, *other;
    unsigned index, name_space; // from 1 on, MAX_LINKED: not known; of dlmopen
    uintptr_t end;              // set by hook_linked_of, unless it is the program
    bool in_use;                // by the program: it is not unmapped meanwhile
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

// -- driver.c --------------------------------------------------------------

// The driver's library.

bool hook_has_driver(void); // whether it is loaded
bool hook_driver_is_simulated(void);
void *hook_driver_function(const char *symbol); // the real one, or NULL
// Calls `find_all` once for each driver that is loaded, and returns what it returned: threads may be the
// first at once. `found` is 0 until then.
bool hook_find_once(_Atomic int *found, bool (*find_all)(void));
bool hook_in_driver(const void *address);
// The exported name of the function at an address, of several the first that is an entry point of the API;
// NULL if there is none.
const char *hook_driver_symbol(const void *address);
bool hook_forget_driver(struct span *was); // if it was closed: true, and where it lay

// -- memory.c --------------------------------------------------------------

// What is mapped, as the kernel says it.

struct mapping {
    uint64_t start, end, offset, inode;
    const char *path; // until the next one is read
};
struct maps *hook_open_maps(void); // NULL without memory: nothing is mapped then
bool hook_next_mapping(struct maps *maps, struct mapping *mapping);
void hook_close_maps(struct maps *maps);

// Memory that the program may have given back.

// They return false if not all of it is there.
bool hook_peek(const void *from, void *into, size_t size);
bool hook_peek_text(const char *from, char *into, size_t size);
bool hook_is_readable(const void *start, size_t size);

// What an argument of a call points to, before the driver has looked at it: it may be anything. False, and
// zeros, if it is not there. On the stack of the caller, where arguments mostly are, it is a memcpy.
bool hook_read(const void *from, void *into, size_t size);

// -- missing.c -------------------------------------------------------------

// GPU code that is not there.

void hook_on_failure(struct frame *frame);

// -- modules.c -------------------------------------------------------------

// Images of modules, kept in files.

void hook_save_setup(void);
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]);

// Handlers of the functions that load GPU code and look into it.

extern handler hook_on_module_image, hook_on_module_file, hook_on_library_module, hook_on_function,
    hook_on_kernel, hook_on_kernel_function, hook_on_enumerate_functions, hook_on_enumerate_kernels,
    hook_on_variable_of_1, hook_on_variable_of_2, hook_on_function_attribute, hook_on_kernel_attribute,
    hook_on_function_cache, hook_on_kernel_cache, hook_on_function_shared, hook_before_gone, hook_on_gone;
uint64_t hook_whole_module(uint64_t module); // of one of a library the library, which has the same variables
int hook_ask_parameters(uint64_t handle);

struct image {
    const char *type; // fatbin, cubin or ptx
    const void *start;
    uint64_t size;
};
struct image hook_read_image(const void *given); // what the driver was given: wrappers are followed

uint32_t hook_new_id(_Atomic uint32_t *ids);
uint32_t
hook_ask_function(uint64_t handle); // the id of a function, after asking the driver for its name; or 0

// -- nvtx.c ----------------------------------------------------------------

// Ranges and marks of the program.

typedef int nvtx_initialize(nvtx_get_export_table *get_table);
typedef int nvtx_initialize_extension(nvtxExtModuleInfo_t *module);

// `other` is what another tool begins with, or NULL. Return whether the program is to pass its ranges on.
int hook_nvtx_begin(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted);
int hook_nvtx_begin_extension(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted);

// Another tool that NVTX_INJECTION64_PATH named: it gets the program's ranges as it would without gpt-hook.

enum { NVTX_SLOTS = 16 };

// Its functions of the tables of NVTX, and of that of the payload extension, NULL where it has none. The
// first part of the program that begins to use NVTX decides.
extern nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS];
extern nvtx_function *hook_nvtx_payload[NVTX_SLOTS];

// What a function of ours ends with: the other tool's, if it has one, is called last, and its result counts.
#define NVTX_CALL(type, next, ...) ((type (*)())next)(__VA_ARGS__)
#define NVTX_PASS(type, next, mine, ...)                                                                     \
    do {                                                                                                     \
        type result = mine;                                                                                  \
        return next ? NVTX_CALL(type, next, __VA_ARGS__) : result;                                           \
    } while (0)
#define NVTX_TELL(next, ...)                                                                                 \
    do {                                                                                                     \
        if (next)                                                                                            \
            NVTX_CALL(void, next, __VA_ARGS__);                                                              \
    } while (0)

// The program knows a range that was started by the id of the other tool, if that has one.
#define NVTX_STARTED(next, mine, ...)                                                                        \
    do {                                                                                                     \
        uint64_t result = mine;                                                                              \
        if (!next)                                                                                           \
            return result;                                                                                   \
        uint64_t theirs = NVTX_CALL(uint64_t, next, __VA_ARGS__);                                            \
        hook_nvtx_remember(theirs, result);                                                                  \
        return theirs;                                                                                       \
    } while (0)

// Lets the other tool, if there is one, set its functions, and, if `wanted`, puts ours in front. Returns what
// NVTX is to know.
int hook_nvtx_exchange(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted,
                       nvtx_function *const *core, nvtx_function *const *core2);

// The same for an extension of NVTX, where `ours` are functions of the payload extension. Another extension,
// and a version of it or a table that is not known, is left to the other tool.
int hook_nvtx_extend(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted,
                     nvtx_function *const *ours);

// Its handle of a domain or string, and the text of that.
void hook_nvtx_know(const void *handle, const char *text);
const char *hook_nvtx_text(const void *handle);

// Its id of a range, and ours; `recall` forgets it, and returns 0 if there is none.
void hook_nvtx_remember(uint64_t theirs, uint64_t ours);
uint64_t hook_nvtx_recall(uint64_t theirs);

// What the program marks with NVTX, and its names.

#define NVTX_NAME_MAX 1024

struct nvtx_name {
    char room[NVTX_NAME_MAX]; // for a text that has to be converted
    struct gpt_str text;
};

void hook_nvtx_narrow(struct nvtx_name *name, const wchar_t *wide);
void hook_nvtx_take(struct nvtx_name *name, const char *text);
void hook_nvtx_read_name(struct nvtx_name *name, const nvtxEventAttributes_t *event);

// Texts that stay, NULL if there is no room; and the text that a handle stands for, NULL if it is not known.
const char *hook_nvtx_keep_narrow(const char *text);
const char *hook_nvtx_keep_wide(const wchar_t *wide);
const char *hook_nvtx_read_handle(const char *handle);

// Domains are handles; `event` may be NULL. `pop` ends the range that the thread pushed last in the domain.
// Both return its level.
void hook_nvtx_mark(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_push(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_pop(const char *domain);
uint64_t hook_nvtx_start(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
void hook_nvtx_end_started(uint64_t id); // by the id that the program knows

// -- nvtx_payload.c --------------------------------------------------------

// The payload extension of NVTX.

// Sets the text to the message among the payloads of an event, NULL if that is not known.
void hook_nvtx_read_payload(struct nvtx_name *name, const char *domain, const nvtxPayloadData_t *payloads,
                            size_t count);

// -- objects.c -------------------------------------------------------------

// What the driver gave out and has not taken back: contexts, modules, libraries, kernels, functions, graphs.
//
// The driver names each by a handle, an address that it uses again. An object is a handle from when it was
// given out until it is gone: unloaded, destroyed, its context destroyed or reset, or given out again for
// something else, of which nothing was seen. Each has a generation that no other object of the process has,
// so whoever keeps a reference sees without a lock whether it still means what it meant.
//
// What is known goes with the object. All that is kept is in use, or free for the next one: as much as was
// alive at once.

enum object_kind {
    OBJECT_NONE,
    OBJECT_CONTEXT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,   // of a library; has functions
    OBJECT_FUNCTION, // of a module, or of a kernel in a context
    OBJECT_GRAPH,
    OBJECT_GRAPH_EXEC,
};

// What is known of an object that was met.
struct object_facts {
    enum object_kind kind;
    uint64_t handle;
    uint64_t parent;  // handle of what it goes with: its module, library, kernel; 0: none
    uint64_t context; // 0: it is of no context, or of that of its parent
    const char *name; // or NULL
    const void *image;
    uint64_t image_size; // bytes; 0: not known
    uint32_t id;         // of its record in the trace; 0: it has none
    bool made;           // by this very call: what had the handle before is gone
    bool asked;          // the driver was, for the name
};

// What is known of an object.
struct object_view {
    struct reference reference;
    enum object_kind kind;
    uint64_t handle, parent, context;
    const void *image; // its own, or that of what it goes with; NULL: not known
    uint64_t image_size;
    uint32_t id;     // in the trace
    uint32_t module; // id in the trace of the module or library that it is of
    bool asked;      // the driver was, for its name
};

// What a program set, or the driver said, of a function or module.
struct property {
    enum {
        PROPERTY_ATTRIBUTE,     // of a function: number is the CUfunction_attribute
        PROPERTY_CACHE_CONFIG,  // CUfunc_cache
        PROPERTY_SHARED_CONFIG, // CUsharedconfig
        PROPERTY_PARAMETER,     // number is its place; value its offset, size its bytes
        PROPERTY_VARIABLE,      // of a module or library: value is its address, size its bytes
        PROPERTY_BODY,          // of a graph: number is a conditional node, value one of its graphs
        PROPERTY_NODES,         // of an executable graph: memory, mapped, that goes with it
    } what;
    uint64_t number;
    int device; // -1: not of one device. Of a body: which it is
    uint64_t value, size;
    const char *name; // of a variable, else NULL
};

struct reference hook_object_add(const struct object_facts *facts);
struct reference hook_object_find(uint64_t handle);
bool hook_object_look(uint64_t handle, struct object_view *view); // false: there is none

// Whoever uses a handle outside of a call that the program made with it holds it: the program's unloading
// waits that long. What is held is the module or library that it goes with; none if that is gone, or about to
// go.
struct reference hook_object_hold(struct reference reference);
void hook_object_let_go(struct reference held);
bool hook_object_close(uint64_t handle); // for its unloading: nobody can hold it any more. False: it is held
void hook_object_open(uint64_t handle);  // it was not unloaded

uint64_t hook_function_with_id(uint32_t id); // a handle of it, or 0. Looks at all objects

// Gives an object that has no id the id, and its id.
uint32_t hook_object_set_id(struct reference reference, uint32_t id);

// The last generation that was given. A call that ends an object asks for it before the real one, and says
// it after: what was made in between by another thread stays, though it may have the same handle.
uint64_t hook_object_generation(void);
void hook_object_gone(uint64_t handle, uint64_t generation);          // and all that goes with it
void hook_object_context_gone(uint64_t context, uint64_t generation); // and all that is of it

// Adds a property, or exchanges the one of the same kind, number, device and name.
// Returns whether the object has it now.
bool hook_object_set(uint64_t handle, const struct property *property);
// Shows each property of an object, while nothing else can become of it: `see` must not call the driver.
void hook_object_each(uint64_t handle, void (*see)(const struct property *property, void *with), void *with);

#define OBJECT_SIZES 10 // of pieces of memory: 32 bytes to 16 KiB

// The table, in memory that is zero again in a forked child.
struct objects {
    pthread_mutex_t lock;
    _Atomic uint64_t generations;
    struct object **buckets;
    uint32_t size, count;
    struct object *spare; // memory of objects is never used for anything else
    void *spares[OBJECT_SIZES];
    char *slab;
    size_t slab_left;
};

// -- driver.c --------------------------------------------------------------

// What is known of this process.

// In memory that is zero again in a forked child (hook_process_memory).

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
    _Atomic uint32_t kernels, maps, probed; // of probes
    struct stream_queue *_Atomic timelines; // of --gpu-time
    pthread_mutex_t finding;                // the driver's functions
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
    _Atomic bool unseen; // it was said which libraries' calls are not recorded, see intercept.c
    struct map missing;  // what was said, see missing.c
    struct map rules;    // how stacks are walked, see sites.c
    struct map stacks;   // what has a record, see sites.c
    _Atomic uint32_t said;
};
extern struct watched *hook_watched;
bool hook_watched_setup(void);
_Atomic uint64_t *hook_find_in_map(struct map *map, uint64_t key); // its place, or NULL if there is none

// -- sites.c ---------------------------------------------------------------

// What the unwind tables of a library (.eh_frame, found by .eh_frame_hdr) say of an address.

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

// Where calls come from.

extern const char *hook_stacks; // the words of gpt-hook --stacks, or NULL
void hook_sites_setup(void);
extern handler hook_on_site; // of a call that has a row

// The stack of a thread, from the unwind tables of its libraries.

void hook_unwind_setup(void);
// Return addresses outside of this library, the innermost first. Returns how many.
size_t hook_unwind(uint64_t *addresses, size_t most);

// -- streams.c -------------------------------------------------------------

// When what was launched ran on the GPU.

extern bool hook_gpu_time;
void hook_gpu_begin(struct frame *frame);
void hook_gpu_end(struct frame *frame, bool done);
void hook_gpu_read(struct thread *thread);

// What goes into streams and runs there later: which stream that is, whether it is captured, events before
// and after it, and what is pending.
//
// A queue belongs to a thread and a context, so nothing is locked: only the thread that ends the process
// looks at the queues of other threads, and leaves one alone that is in use.

struct thread;

#define STREAM_PENDING 1024 // operations of a queue that have not been read

enum operation_state { STREAM_DONE, STREAM_RUNNING, STREAM_ISSUED };

struct operation {
    void *start, *end; // events in its stream
    uint64_t call;     // its time stamp
    uint64_t stream;
    const struct frame *owner; // while the call runs
    struct base *base;         // of the user of the queue
    uint32_t api, function, thread;
    bool probed;
    _Atomic enum operation_state state; // a thread that ends the process may look while the call comes back
};

struct stream_queue {
    struct stream_queue *next; // of this thread
    struct stream_queue *next_of_all;
    struct thread *thread;
    uint64_t context;
    uint32_t device;            // ordinal
    struct reference reference; // to the context: all that the queue holds goes with it
    atomic_bool busy;
    unsigned first, count, spares;
    struct operation pending[STREAM_PENDING]; // oldest first
    void *spare[2 * STREAM_PENDING];          // events
};

// Those of one user, each of `size` bytes that begin with a struct stream_queue.
struct stream_queues {
    struct stream_queue **of_thread;
    struct stream_queue *_Atomic *all;
    size_t size;
};

// Functions of the driver; hook_streams_setup returns false if one of them is missing.
struct stream_functions {
    CUresult (*get_context)(void **), (*get_device)(CUdevice *), (*push_context)(void *),
        (*pop_context)(void **);
    CUresult (*create_stream)(void **, unsigned), (*is_capturing)(void *, int *), (*exchange_mode)(int *);
    CUresult (*create)(void **, unsigned), (*record)(void *, void *), (*query)(void *);
    CUresult (*elapsed)(float *, void *, void *);
};
extern struct stream_functions hook_cu;
bool hook_streams_setup(void);

uint64_t hook_stream_of(const struct frame *frame); // as the driver takes it; 0: the legacy default stream

// Streams that the driver made or took: no other one is passed to it before the program's own call, which it
// may refuse without a look at the stream.
bool hook_stream_is_known(uint64_t stream);
void hook_know_stream(uint64_t stream);
void hook_forget_streams(uint64_t stream); // 0: all of them
extern handler hook_on_stream, hook_before_stream_gone;

// While a stream of the program is captured the driver forbids most of what is called here, and ends the
// capture, unless the thread says that it knows (relaxed mode). Returns the mode before.
int hook_stream_mode(int mode);

// The queue of the thread in its current context, claimed: to be given back. NULL: none, or in use. Where it
// does not exist it is made if `make`, and is zero after what struct stream_queue holds.
struct stream_queue *hook_stream_claim(const struct stream_queues *queues, struct thread *thread, bool make);
void hook_stream_release(struct stream_queue *queue);

void *hook_stream_event(struct stream_queue *queue); // one that is not in use, or NULL

// An operation whose call is about to be made, after its first event; NULL if it is captured, which does
// not run, or if there is no room.
struct operation *hook_stream_begin(struct stream_queue *queue, const struct frame *frame);
// The call is back: the event after it, if it was done.
void hook_stream_end(struct operation *operation, const struct frame *frame, bool done);

// Takes those off that have ended; waits for none. `see` may look at both events.
void hook_stream_read(struct stream_queue *queue,
                      void (*see)(struct stream_queue *queue, struct operation *operation, bool ended));

// -- tensors.c -------------------------------------------------------------

// What the program tells of its tensors: gpt/tensors/__init__.py finds these functions among the symbols of
// the process, and any other program may.

// A tensor is there, under this name. `id` is a number that the program gives it, and is not given again;
// under another name it has the same. `address` is that of its lowest byte, `bytes` how many there are from
// it to the end of the highest, `first` where the first element is. Of a text the first 1,023 bytes are
// taken, of `dims` the first
// 64. `function` and `file` may be NULL. Returns 1 if it was recorded, 0 if nothing is recorded now.
EXPORT int gpt_hook_tensor(uint64_t id, const char *name, uint64_t address, uint64_t bytes, uint64_t first,
                           const char *dtype, const uint64_t *shape, uint64_t dims, const char *function,
                           const char *file, uint64_t line);

// The program gave it up: what is at its address from now on is something else.
EXPORT void gpt_hook_tensor_end(uint64_t id);

#endif
