// Watching the program use the driver: objects, contexts, modules, graphs, streams, libraries, call stacks,
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

// A driver call, as handlers see it.

// Where a row's value comes from: an argument, the memory that an argument points to after a successful call,
// or nowhere.
enum { ARG_NONE = 0, ARG_IN = 0x10, ARG_OUT = 0x20, ARG_MASK = 0xf };

// Arguments that need special decoding.
enum special {
    SPECIAL_NONE,
    SPECIAL_LAUNCH, // the arguments of cuLaunchKernel
    SPECIAL_LAUNCH_COOPERATIVE,
    SPECIAL_LAUNCH_EX,  // the configuration of cuLaunchKernelEx
    SPECIAL_LAUNCH_OLD, // function, grid width and height, stream: whichever of these it has
    SPECIAL_PITCH,      // cuMemAllocPitch
    SPECIAL_COPY_2D,    // CUDA_MEMCPY2D
    SPECIAL_COPY_3D,    // CUDA_MEMCPY3D
    SPECIAL_TIMES_2,    // bytes are twice the value
    SPECIAL_TIMES_4,
    SPECIAL_AREA_1, // bytes are width times height (arguments 3 and 4) times the item size
    SPECIAL_AREA_2,
    SPECIAL_AREA_4,
};

struct frame;
typedef void handler(struct frame *frame);

// A driver function that the program looked up: the real one, and our handling of its calls.
struct slot {
    void *real;
    uint32_t flags;
    uint32_t id;                // id of its `api` record
    _Atomic uint32_t announced; // live->pid of the trace that has this record
    uint8_t layout;             // enum layout
    uint8_t special;            // enum special
    uint8_t values[4];          // ARG_*: to, from, bytes, stream; or object, stream
    bool capturable;            // on a capturing stream, the call adds a node to the graph
    _Atomic uint32_t captured;  // like announced, for the `api` record of captured calls
    handler *on_return;         // called when the function returned CUDA_SUCCESS
    const char *symbol;         // as the program requested it
    const struct driver_function *known;
    int8_t words;     // stack arguments, an even number; STACK_WORDS if unknown
    uint8_t query;    // index into the queries of a thread
    uint16_t on, off; // flags while calls are recorded, and while they are not
    bool claimed;     // a thread is filling it in
    char pad;
};

// The name of a function without version and stream suffix.
#define NAME_BYTES 128
static inline void slot_name(const struct slot *slot, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%s", slot->symbol);
    gpt_cut_suffixes(name);
}

// The launch that a call makes, in one form for all launch functions.
struct launch {
    uint64_t function, stream;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared; // bytes
    void **params, **extra;
    bool cooperative;
};

// What a handler before the call leaves for the one after it. A call has at most one, and only a handler that
// asks for this kind gets it.
enum note_kind {
    NOTE_NONE,
    NOTE_GENERATION,  // number: of the objects, when one is about to go
    NOTE_SAVE,        // struct save: a launch with probes, or with its parameters unpacked
    NOTE_REASON,      // struct reason: why a launch has no probes
    NOTE_DRAINS_HELD, // nothing more
    NOTE_REPLAY,      // struct prepared: the graph that is launched
    NOTE_INSERTION,   // struct insertion: probes in a graph while the driver reads it
    NOTE_CHANGED,     // struct changed: a node of an executable graph
    NOTE_UNPACKED,    // struct unpacked: a node of a graph
    NOTE_TIMED,       // struct timed_graph: the graph that is launched
};
struct note {
    enum note_kind kind;
    union {
        const void *pointer;
        uint64_t number;
    };
};

// A stub's stack frame while the real function runs. The stub keeps argument and result registers in
// `registers` (arch_hook.h), of which everybody else uses the functions below.
struct __attribute__((aligned(16))) frame {
    uint64_t result;
    struct arch_registers registers;
    struct slot *slot;
    struct row *row;
    uint64_t start;
    struct count *counter;   // counter of the function launched, or of the query
    struct thread *thread;   // the thread that recorded the call
    struct operation *timed; // the operation that the call puts into a stream
    struct note note;        // left by the handler before the call for the one after it
    void *real;              // the function to call, normally the real one
    uint64_t answer;
    struct launch launch;
    uint32_t flags;    // the slot's flags when the call began
    bool probed;       // a launch was made with probes
    bool off;          // nothing was recorded when the call began
    const void *outer; // the enclosing call, if this one was made in a signal handler, for example
};

// Return how many arguments a function may have, an upper bound. It reads no more of its caller's stack.
static inline unsigned frame_arg_count(const struct frame *frame) {
    return ARCH_REGISTER_ARGS + (unsigned)frame->slot->words;
}

static inline uint64_t frame_arg(const struct frame *frame, unsigned index) {
    return index < ARCH_REGISTER_ARGS ? frame->registers.args[index]
                                      : frame->registers.stack[index - ARCH_REGISTER_ARGS];
}

// Handlers that run before the call may set its arguments, and may also replace frame->real. Stack arguments
// belong to the function called, so we may change them.
static inline void frame_set_arg(struct frame *frame, unsigned index, uint64_t value) {
    *(index < ARCH_REGISTER_ARGS ? &frame->registers.args[index]
                                 : &frame->registers.stack[index - ARCH_REGISTER_ARGS]) = value;
}

// Handlers that run before the call may also skip the driver and give the program this result.
static inline void frame_answer(struct frame *frame, uint64_t result) {
    frame->real = NULL;
    frame->answer = result;
}

static inline void frame_leave_note(struct frame *frame, enum note_kind kind, const void *pointer) {
    frame->note = (struct note){pointer ? kind : NOTE_NONE, {.pointer = pointer}};
}

// Return the number in the note, or 0 if it has another kind.
static inline uint64_t frame_note_number(const struct frame *frame, enum note_kind kind) {
    return frame->note.kind == kind ? frame->note.number : 0;
}

// Return the note, or NULL if it has another kind.
static inline void *frame_note(const struct frame *frame, enum note_kind kind) {
    return frame->note.kind == kind ? (void *)frame->note.pointer : NULL;
}

static inline uint64_t frame_caller(const struct frame *frame) { return arch_caller(&frame->registers); }

// -- contexts.c ------------------------------------------------------------

// Handlers of the functions that make and destroy contexts.

// Return the context that a call destroys, releases or resets; 0 if the program never retained it.
uint64_t hook_context_that_ends(const struct frame *frame);
extern handler hook_on_context_retained, hook_on_context_made, hook_on_context_destroyed,
    hook_on_context_reset, hook_on_context_released, hook_before_context_gone;

// -- current.c -------------------------------------------------------------

// The current context.

uint64_t hook_current_context(void);  // this thread's, or 0
void hook_remember_contexts(bool on); // only while the calls that set contexts are watched
struct context_calls {
    CUresult (*get)(uint64_t *), (*push)(uint64_t), (*pop)(uint64_t *);
};
extern struct context_calls hook_context_calls; // the functions of the driver
bool hook_find_context_calls(void);             // false if the driver lacks one
CUresult hook_push_context(uint64_t context);
void hook_pop_context(void);
extern handler hook_after_context_set, hook_after_context_end;

// -- driver.c --------------------------------------------------------------

// The devices.

void hook_see_device(int device); // writes its record

// -- graphs.c --------------------------------------------------------------

// Streams that the program captures: work put into them becomes a graph instead of running.

extern _Atomic uint32_t hook_captures; // captures that may be in progress

static inline bool hook_is_capturing(void) {
    return atomic_load_explicit(&hook_captures, memory_order_relaxed) != 0;
}

bool hook_has_captured(void); // true if any stream ever was

// Return whether a stream is being captured. Call it after a successful call on that stream.
bool hook_is_captured(uint64_t stream);

bool hook_begin_capture(void); // returns whether it's the first
void hook_end_capture(void);

// Handlers of the functions that make graphs.

extern handler hook_on_instantiate, hook_on_exec_update, hook_on_graph, hook_on_captured, hook_on_node;
extern handler hook_on_exec_kernel, hook_on_exec_child, hook_on_exec_node, hook_on_node_enabled;
extern handler hook_on_exec_copy, hook_on_exec_set, hook_on_clone;

// -- graph_walk.c ----------------------------------------------------------

#define MAX_GRAPH_DEPTH 16  // nesting of graphs
#define MAX_GRAPH_BODIES 64 // bodies of a conditional node

struct graph_node {
    void *handle;
    int type;
    unsigned depth;                 // how many nodes enclose it
    bool unconditional;             // it runs once; false inside a conditional node's body
    CUDA_KERNEL_NODE_PARAMS kernel; // a kernel node's; all zero if the driver doesn't say
};

// Call `see` for each node of a graph, each followed by the nodes of the graphs inside it, until it returns
// false.
void hook_walk_graph(void *graph, bool (*see)(const struct graph_node *node, void *with), void *with);
void hook_miss_graph(void); // says once that memory ran out, so that a graph isn't known, or not all of it

// -- origins.c -------------------------------------------------------------

// Where the nodes of graphs come from.

struct origin {    // the call that created a node, or was captured as it; all zero if unknown
    uint64_t call; // its time stamp
    uint32_t thread;
};

struct kept_origin {
    struct origin origin;
    uint64_t capture; // the driver's id of the capture, or 0
};

struct origin hook_origin_of(uint64_t node);
void hook_on_child_made(struct frame *frame, void *graph); // a node with a copy of this graph
// After a call that was captured.
extern handler hook_keep_captured;
extern handler hook_on_node_made, hook_on_child;
// After a call that made a copy of a graph.
void hook_copy_origins(const struct frame *frame, void *graph, void *made);
bool hook_can_walk_graphs(void); // false if the driver lacks a function for it

// -- graph_work.c ----------------------------------------------------------

// Work of graph nodes other than kernels: copies, memsets, host functions, memory.

#define MAX_OPERATIONS 1024 // distinct ones per graph

struct graph_work {
    uint8_t what; // enum in graphs.c; 0: nothing to count
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

// -- node_times.c ----------------------------------------------------------

// Times of the nodes of graphs (--node-times).

void hook_time_nodes(uint64_t exec, void *graph, uint64_t flags); // after it was instantiated from a graph
void hook_time_other_nodes(uint64_t exec, void *graph);           // after it was updated from a graph
// Call this after a driver call (exec, node, ...) that changed a node. `function` is the id of the node's new
// kernel, or 0; `disabled` is 1 or 0 if the node was disabled or enabled, else -1.
void hook_change_timed_node(const struct frame *frame, uint32_t function, int disabled);
extern handler hook_before_exec_destroyed;
extern handler hook_before_timed_replay;
extern handler hook_after_timed_replay; // if that left a note

// -- ioctl.c ---------------------------------------------------------------

// The driver's requests to the kernel.

void hook_ioctl_setup(void);
extern bool hook_ioctl_wanted;
int hook_record_ioctl(int (*real)(int, unsigned long, ...), int file, unsigned long request, void *argument);

// -- layers.c --------------------------------------------------------------

// The modules of a model, for Python programs (gpt/layers).

// Record that this thread enters the module with this name, which is cut to 1,023 bytes. Returns 1 if that is
// recorded; then call gpt_hook_layer_end when the thread leaves it.
EXPORT int gpt_hook_layer(const char *name);
EXPORT void gpt_hook_layer_end(void);
bool hook_records_layers(void); // now

// -- layers_python.c -------------------------------------------------------

// Python's functions and objects. gpt/layers fills this in, and has the same list.
typedef struct gpt_python_object gpt_object;
typedef gpt_object *gpt_vectorcall(gpt_object *, gpt_object *const *, size_t, gpt_object *);
struct gpt_python {
    gpt_vectorcall *vectorcall;                                         // Python's own
    void (*set_vectorcall)(gpt_object *, gpt_vectorcall *);             // PyFunction_SetVectorcall, or NULL
    void (*add_reference)(gpt_object *);                                // Py_IncRef
    void (*drop)(gpt_object *);                                         // Py_DecRef
    gpt_object *(*get_attribute)(gpt_object *, gpt_object *);           // PyObject_GetAttr
    gpt_object *(*call)(gpt_object *, ...);                             // PyObject_CallFunctionObjArgs
    gpt_object *(*call_method)(gpt_object *, gpt_object *, ...);        // PyObject_CallMethodObjArgs
    gpt_object *(*call_with)(gpt_object *, gpt_object *, gpt_object *); // PyObject_Call
    gpt_object *(*new_function)(void *, gpt_object *, gpt_object *);    // PyCFunction_NewEx
    gpt_object *(*new_number)(void *);                                  // PyLong_FromVoidPtr
    long long (*number_of)(gpt_object *);                               // PyLong_AsLongLong
    const char *(*text_of)(gpt_object *);                               // PyBytes_AsString
    gpt_object *(*dict_item)(gpt_object *, gpt_object *);               // PyDict_GetItem
    int (*dict_next)(gpt_object *, ssize_t *, gpt_object **, gpt_object **); // PyDict_Next
    ssize_t (*tuple_size)(gpt_object *);                                     // PyTuple_Size
    gpt_object *(*tuple_item)(gpt_object *, ssize_t);                        // PyTuple_GetItem
    ssize_t (*list_size)(gpt_object *);                                      // PyList_Size
    gpt_object *(*list_item)(gpt_object *, ssize_t);                         // PyList_GetItem
    int (*is_subtype)(gpt_object *, gpt_object *);                           // PyType_IsSubtype
    unsigned long (*flags_of)(gpt_object *);                                 // PyType_GetFlags
    int (*matches_error)(gpt_object *);                                      // PyErr_ExceptionMatches
    void (*clear_error)(void);                                               // PyErr_Clear
    // objects
    gpt_object *none, *truth, *exception;               // None, True, Exception
    gpt_object *tensor, *parameter;                     // torch.Tensor, torch.nn.Parameter
    gpt_object *grad_fn, *sequence_nr, *register_hooks; // names of attributes
    gpt_object *is_grad_enabled, *is_mode_enabled;      // functions: about torch.overrides.TorchFunctionMode
    gpt_object *find_node, *find, *find_site;           // functions; the last two name modules
    gpt_object *find_set_up;                            // function: names the range of a set-up
    gpt_object *make_carrier, *add_hook;                // functions: hooks of a module's nodes
    gpt_object *names, *backward_names, *carriers;      // dicts: by id(), and by name
    gpt_object *backward_pass;                          // the name of what's in no module there
    uint64_t type_at;                                   // where an object has its type
};

// Let calls of a Python function pass through us; `place` is where it has its vectorcall. Returns 0 if that
// isn't what `given` says.
EXPORT int gpt_hook_wrap_calls(gpt_object *function, size_t place, const struct gpt_python *given);

// Let autograd nodes that are made from now on belong to no module.
EXPORT void gpt_hook_stop_tagging(void);
// Return a function that calls PyTorch's _engine_run_backward.
EXPORT gpt_object *gpt_hook_wrap_backward(gpt_object *original);
// Return a new hook for autograd nodes, which records that the module `name`, or none, is running.
EXPORT gpt_object *gpt_hook_new_node_hook(gpt_object *name);
// gpt_hook_layer if the thread is in no module and no set-up
EXPORT int gpt_hook_layer_outside(const char *name);
// Let calls of another Python function pass through us, and record a range: outside of modules, with this
// name, or anywhere if the function does a kind of set-up. Either `name` or `kind` is None, the other one
// bytes; both are None for a function that loads the driver.
EXPORT int gpt_hook_name_calls(gpt_object *function, gpt_object *name, gpt_object *kind);

// Return a new Python function for code made by torch.compile to call. Its argument is a place in that code,
// whose module the thread is in from then on, or None.
EXPORT gpt_object *gpt_hook_new_region(void);

// -- libraries.c -----------------------------------------------------------

// The shared libraries of the process.

void hook_scan_libraries(void);
void hook_scan_at_end(void); // opens no file if a seccomp filter may forbid it
void hook_before_close(const void *handle);
void hook_after_close(void);
const char *hook_find_library(const void *address); // the library that contains it, or NULL
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size);
// Changes when a library is closed, since another one may be mapped in its place.
uint64_t hook_unwind_generation(void);

// -- linker.c --------------------------------------------------------------

// The libraries that the dynamic linker loaded, and their symbols.

#define MAX_LINKED 8192 // a limit, since a list that changes while we read it may never end
struct linked {
    uintptr_t address, dynamic; // load bias; address of the dynamic section
    const char *name;           // a path, or "" for the program
    const void *map, *next, *other;
    unsigned index, name_space; // position in the list, from 1 (MAX_LINKED if unknown); namespace of dlmopen
    uintptr_t end;              // set by hook_linked_of, unless it is the program
    bool in_use;                // opened by the program, so it isn't unmapped meanwhile
};
void hook_linker_setup(void);
bool hook_is_glibc(void);
bool hook_next_linked(struct linked *linked); // from {0} on
bool hook_linked_at_start(const struct linked *linked);
bool hook_comes_after_us(const struct linked *linked);
bool hook_is_driver(const struct linked *linked);                      // by its soname
bool hook_linked_of(const void *address, struct linked *linked);       // the library that contains an address
void *hook_function_in(const struct linked *linked, const char *name); // or NULL
void *hook_variable_in(const struct linked *linked, const char *name); // or NULL
void *hook_next_function(const char *name);                            // like dlsym(RTLD_NEXT); or NULL
void hook_each_function(const struct linked *linked,
                        void (*see)(void *state, uintptr_t address, const char *name), void *state);
struct span {
    uintptr_t start, end;
};
void hook_each_reference(const struct linked *linked, void (*see)(void *state, void **word, const char *name),
                         void *state);
struct span hook_protected_in(const struct linked *linked); // the caller keeps the library open
bool hook_has_namespaces(void);                             // made by dlmopen or an auditing library

// -- python.c --------------------------------------------------------------

// The Python frames of a thread.

// Return false if there's no Python that we can read. A message about that names this option.
bool hook_find_python(const char *option);
// Return the number of the stack of a thread's frames, of which the outermost may be missing, or 0 if it has
// none. `changed`: set if inner frames changed meanwhile and are left out; NULL for the thread that calls
// this.
uint64_t hook_number_python(uint32_t tid, bool *changed);
extern handler hook_on_python_site; // like hook_on_site

// -- samples.c -------------------------------------------------------------

// What the host does between calls.

void hook_samples_setup(void);
void hook_sample_host(void); // after cuInit: start the thread that takes samples, if they're wanted

// -- driver.c --------------------------------------------------------------

// The driver's library.

bool hook_has_driver(void); // true if it's loaded
bool hook_driver_is_simulated(void);
const char *hook_driver_runs(void);             // the code that it needs: sass, or ptx; after cuInit()
void *hook_driver_function(const char *symbol); // the real one, or NULL
// Call `find_all` once per loaded driver and return its result, even if several threads come at once. `found`
// is 0 until then.
extern _Atomic int hook_drivers_gone;
bool hook_find_again(_Atomic int *found, bool (*find_all)(void), int number);
static inline bool hook_find_once(_Atomic int *found, bool (*find_all)(void)) {
    int number =
        2 * (atomic_load_explicit(&hook_drivers_gone, memory_order_relaxed) + 1); // + 1: all were found
    int seen = atomic_load_explicit(found, memory_order_acquire);
    return LIKELY((seen & ~1) == number) ? seen & 1 : hook_find_again(found, find_all, number);
}
bool hook_in_driver(const void *address);
// Return the exported name of the function at an address: the first that belongs to the API, or NULL.
const char *hook_driver_symbol(const void *address);
bool hook_forget_driver(struct span *was); // returns true, and where it was, if it was closed

// -- memory.c --------------------------------------------------------------

// The process's mappings, from /proc.

struct mapping {
    uint64_t start, end, offset, inode;
    const char *path; // valid until the next one is read
};
struct maps *hook_open_maps(void); // NULL if memory runs out: treated as no mappings
bool hook_next_mapping(struct maps *maps, struct mapping *mapping);
void hook_close_maps(struct maps *maps);

// Memory that the program may free at any time.

// These return false if any part of it is unmapped.
bool hook_peek(const void *from, void *into, size_t size);
bool hook_peek_text(const char *from, char *into, size_t size);
bool hook_is_readable(const void *start, size_t size);

// Read memory that a call's argument points to. The driver hasn't checked it yet, so the pointer may be
// invalid: then this returns false and zeros. For the caller's stack, where most arguments live, it's a
// memcpy.
bool hook_read(const void *from, void *into, size_t size);
// Do the same for values that are likely near each other. `there` is the number of a page known to be mapped,
// or 0, because asking the kernel about a page takes longer than everything else.
bool hook_read_near(const void *from, void *into, size_t size, uintptr_t *there);

// -- missing.c -------------------------------------------------------------

// GPU code that is missing.

void hook_on_failure(struct frame *frame);

// -- modules.c -------------------------------------------------------------

// Module images saved to files.

void hook_save_setup(void);
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]);

// Handlers of the functions that load GPU code and look things up in it.

extern handler hook_on_module_image, hook_on_module_file, hook_on_library_module, hook_on_function,
    hook_on_kernel, hook_on_kernel_function, hook_on_enumerate_functions, hook_on_enumerate_kernels,
    hook_on_variable_of_1, hook_on_variable_of_2, hook_on_function_attribute, hook_on_kernel_attribute,
    hook_on_function_cache, hook_on_kernel_cache, hook_on_function_shared, hook_before_gone, hook_on_gone;
uint64_t
hook_whole_module(uint64_t module); // a library's module gives the library, which has the same variables
int hook_ask_parameters(uint64_t handle);

struct image {
    const char *type; // fatbin, cubin or ptx
    const void *start;
    uint64_t size;
};
struct image hook_read_image(const void *given); // at the pointer passed to the driver; follows wrappers

static inline uint32_t hook_new_id(_Atomic uint32_t *ids) { return atomic_fetch_add(ids, 1) + 1; }
uint32_t hook_ask_function(uint64_t handle); // the id of a function, asking the driver for its name; or 0

// -- nvtx.c ----------------------------------------------------------------

// Ranges and marks of the program.

typedef int nvtx_initialize(nvtx_get_export_table *get_table);
typedef int nvtx_initialize_extension(nvtxExtModuleInfo_t *module);

// `other` is another tool's entry point, or NULL. Both return whether the program should send its ranges.
int hook_nvtx_begin(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted);
int hook_nvtx_begin_extension(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted);

// -- nvtx_payload.c --------------------------------------------------------

// The payload extension of NVTX.

struct nvtx_name; // below

// Set the name to the message among an event's payloads, or to NULL without one.
void hook_nvtx_read_payload(struct nvtx_name *name, const char *domain, const nvtxPayloadData_t *payloads,
                            size_t count);

// -- nvtx_ranges.c ---------------------------------------------------------

// Another tool, named by NVTX_INJECTION64_PATH. It gets the program's ranges as it would without gpt-hook.

enum { NVTX_SLOTS = 16 };

// The tool's functions in NVTX's tables and in the payload extension's, NULL where it has none. The first
// part of the program that uses NVTX decides.
extern nvtx_function *hook_nvtx_core[NVTX_SLOTS], *hook_nvtx_core2[NVTX_SLOTS];
extern nvtx_function *hook_nvtx_payload[NVTX_SLOTS];

// What our functions do last: call the other tool's function, if there is one, and return its result to the
// program.
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

// The program knows a started range by the other tool's id, if it has one.
#define NVTX_STARTED(next, mine, ...)                                                                        \
    do {                                                                                                     \
        uint64_t result = mine;                                                                              \
        if (!next)                                                                                           \
            return result;                                                                                   \
        uint64_t theirs = NVTX_CALL(uint64_t, next, __VA_ARGS__);                                            \
        hook_nvtx_remember(theirs, result);                                                                  \
        return theirs;                                                                                       \
    } while (0)

// Let the other tool set its functions, if there is one, and put ours in front if `wanted`. Returns the
// result for NVTX.
int hook_nvtx_exchange(nvtx_get_export_table *get_table, nvtx_initialize *other, bool wanted,
                       nvtx_function *const *core, nvtx_function *const *core2);

// Do so for an NVTX extension; `ours` has the functions of the payload extension. Other extensions, and
// unknown versions or tables, are left to the other tool.
int hook_nvtx_extend(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted,
                     nvtx_function *const *ours);

// The tool's handle of a domain or string, and the text.
void hook_nvtx_know(const void *handle, const char *text);
const char *hook_nvtx_text(const void *handle);

// The tool's id of a range, and ours. `recall` forgets it; returns 0 if unknown.
void hook_nvtx_remember(uint64_t theirs, uint64_t ours);
uint64_t hook_nvtx_recall(uint64_t theirs);

// Names and marks that the program passes to NVTX.

#define NVTX_NAME_MAX 1024

struct nvtx_name {
    char room[NVTX_NAME_MAX]; // for text that must be converted
    struct gpt_str text;
};

void hook_nvtx_narrow(struct nvtx_name *name, const wchar_t *wide);
void hook_nvtx_take(struct nvtx_name *name, const char *text);
void hook_nvtx_read_name(struct nvtx_name *name, const nvtxEventAttributes_t *event);

// Lasting copies of texts, NULL without room; and the text of a handle, NULL if unknown.
const char *hook_nvtx_keep_narrow(const char *text);
const char *hook_nvtx_keep_wide(const wchar_t *wide);
const char *hook_nvtx_read_handle(const char *handle);

// Domains are handles, and `event` may be NULL. `pop` ends the range that the thread pushed last in the
// domain. `push` and `pop` return the range's level.
uint64_t hook_nvtx_new_id(void);
void hook_nvtx_mark(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_push(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
int hook_nvtx_pop(const char *domain);
uint64_t hook_nvtx_start(const char *domain, const nvtxEventAttributes_t *event, struct gpt_str name);
void hook_nvtx_end_started(uint64_t id); // takes the id that the program knows

// -- objects.c -------------------------------------------------------------

// Objects that the driver has given out and not taken back: contexts, modules, libraries, kernels, functions,
// graphs.
//
// The driver names each by a handle, an address that it reuses. An object is a handle from the moment the
// driver gives it out until it ends: it is unloaded or destroyed, its context is destroyed or reset, or the
// driver gives the handle out again because we missed the end. Each object has a generation that no other
// object of the process has, so a reference tells without a lock whether its object is still there.
//
// Everything known about an object is freed with it and reused for the next one, so memory use stays at the
// maximum ever alive at once.

enum object_kind {
    OBJECT_NONE,
    OBJECT_CONTEXT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,   // belongs to a library; has functions
    OBJECT_FUNCTION, // belongs to a module, or is a kernel's in a context
    OBJECT_GRAPH,
    OBJECT_GRAPH_EXEC,
};

// Facts about an object seen in a call.
struct object_facts {
    enum object_kind kind;
    uint64_t handle;
    uint64_t parent;  // handle of its owner (module, library or kernel), or 0
    uint64_t context; // 0: no context, or its parent's
    const char *name; // or NULL
    const void *image;
    uint64_t image_size; // bytes; 0: unknown
    uint32_t id;         // id of its record in the trace, or 0
    bool made;           // created by this call, so an earlier object with this handle is gone
    bool asked;          // we have asked the driver for the name
};

// What we know about an object.
struct object_view {
    struct reference reference;
    enum object_kind kind;
    uint64_t handle, parent, context;
    const void *image; // its own or its owner's; NULL if unknown
    uint64_t image_size;
    uint32_t id;     // in the trace
    uint32_t module; // id in the trace of its module or library
    bool asked;      // we have asked the driver for its name
};

// A property that the program set, or the driver reported, on a function or module.
struct property {
    enum {
        PROPERTY_ATTRIBUTE,     // for functions: number is the CUfunction_attribute
        PROPERTY_CACHE_CONFIG,  // CUfunc_cache
        PROPERTY_SHARED_CONFIG, // CUsharedconfig
        PROPERTY_PARAMETER,     // number is its index; value its offset, size its bytes
        PROPERTY_VARIABLE,      // for modules and libraries: value is its address, size its bytes
        PROPERTY_BODY,          // for graphs: number is a conditional node, value one of its graphs
        PROPERTY_NODES,         // for executable graphs: mapped memory that is freed with it
    } what;
    uint64_t number;
    int device; // -1: not tied to a device. For a body: its index
    uint64_t value, size;
    const char *name; // a variable's name, or NULL
};

struct reference hook_object_add(const struct object_facts *facts);
struct reference hook_object_find(uint64_t handle);
bool hook_object_look(uint64_t handle, struct object_view *view); // false if it isn't known

// Hold a handle to use it outside the program's own calls: unloading it then waits. This holds the module or
// library that owns it. The result is all zero if that is unloaded or about to be.
struct reference hook_object_hold(struct reference reference);
void hook_object_let_go(struct reference held);
bool hook_object_close(
    uint64_t handle); // before unloading: prevents further holds. Returns false if it is held
void hook_object_open(uint64_t handle); // the unloading failed

uint64_t hook_function_with_id(uint32_t id); // a handle of the function, or 0. Searches all objects

// Give an object an id unless it has one. Returns its id.
uint32_t hook_object_set_id(struct reference reference, uint32_t id);

// Return the last generation given out. A call that ends an object reads it before the real call and passes
// it on afterwards: an object that another thread created in between survives, even under the same handle.
uint64_t hook_object_generation(void);
void hook_object_gone(uint64_t handle, uint64_t generation);          // and everything it owns
void hook_object_context_gone(uint64_t context, uint64_t generation); // drops everything in it, too

// Add a property, or replace the one of the same kind, number, device and name. Returns whether the object
// has it now.
bool hook_object_set(uint64_t handle, const struct property *property);
// Call `see` for each property of an object, under the lock: `see` must not call the driver.
void hook_object_each(uint64_t handle, void (*see)(const struct property *property, void *with), void *with);

#define OBJECT_SIZES 10 // size classes, from 32 bytes to 16 KiB

// The table of objects, in memory that reads as zero in a forked child.
struct objects {
    pthread_mutex_t lock;
    _Atomic uint64_t generations;
    struct object **buckets;
    uint32_t size, count;
    struct object *spare; // freed objects, reused only for objects
    void *spares[OBJECT_SIZES];
    char *slab;
    size_t slab_left;
};

// -- driver.c --------------------------------------------------------------

// Per-process state.

// Lives in memory that reads as zero in a forked child (hook_process_memory).

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
        uint64_t start, end, offset; // addresses, and the file offset of `start`
    } segments[MAX_SEGMENTS];
    unsigned count;
    const char *path;
    const char *replaces;  // the path that the program knows, if it differs
    uint64_t mapping;      // a digest of where it starts
    uint64_t end, dynamic; // end of all segments; address of its dynamic section
};

enum { TIMED_BUCKETS = 256 };

struct watched {
    _Atomic uint32_t modules, functions;    // number of ids given out
    _Atomic uint32_t kernels, maps, probed; // number of ids given out, for probes
    _Atomic uint64_t probed_nodes;          // launches with probes that graphs made, and that were written
    struct stream_queue *_Atomic timelines; // for --gpu-time
    pthread_mutex_t finding;                // guards the search for the driver's functions
    _Atomic uint64_t devices;               // a bit for each device that has a record
    _Atomic uint32_t libraries;
    _Atomic bool unmapped; // libraries may have been closed since the last scan
    _Atomic uint32_t scanning;
    uint64_t linked; // a digest of the dynamic linker's list at the last scan
    uint32_t paths_used;
    struct library library[MAX_LIBRARIES];
    char paths[PATH_BYTES];
    struct objects objects;
    _Atomic uint64_t primary[MAX_DEVICES]; // primary contexts of devices
    _Atomic bool unseen;            // we've named the libraries whose calls aren't recorded, see intercept.c
    struct map missing;             // already reported, see missing.c
    struct map rules;               // how stacks are walked, see sites.c
    struct map stacks;              // already recorded, see sites.c
    pthread_mutex_t reading_python; // guards what python.c keeps
    struct map nodes;               // indexes into `origins`, see origins.c
    _Atomic uint64_t origins_used;
    struct kept_origin origins[MAP_ENTRIES];
    _Atomic uint32_t reported;
    pthread_mutex_t timing; // guards the table of graphs whose nodes are timed
    struct timed_graph *timed_graphs[TIMED_BUCKETS];
};
extern struct watched *hook_watched;
bool hook_watched_setup(void);
_Atomic uint64_t *hook_find_in_map(struct map *map,
                                   uint64_t key); // the value's place, or NULL if the map is full

// -- sites.c ---------------------------------------------------------------

// Where calls come from.

extern const char *hook_stacks; // the words after gpt-hook --stacks, or NULL
void hook_sites_setup(void);
extern handler hook_on_site; // for calls that have a row
void hook_write_site(struct frame *frame, uint64_t python);

// Return the number of a stack with this digest, or 0. If it has no record yet, `write` writes that.
uint64_t hook_number_stack(uint64_t digest, bool (*write)(uint64_t id, const void *what), const void *what);
uint64_t hook_number_addresses(const uint64_t *addresses, size_t count); // return addresses, innermost first

// The stack of a thread, from the unwind tables of its libraries (runtime/arch).

void hook_unwind_setup(void);
// Collect return addresses outside this library, innermost first. Returns their number.
size_t hook_unwind(uint64_t *addresses, size_t most);

// -- streams.c -------------------------------------------------------------

// When launches ran on the GPU.

extern bool hook_gpu_time;
extern uint64_t hook_node_times; // N of 1/N, or 0
void hook_gpu_begin(struct frame *frame);
void hook_gpu_end(struct frame *frame, bool done);
void hook_gpu_read(struct thread *thread);
uint64_t hook_stamps_of(float ms);

// Operations put into streams: which stream they go to, whether it is being captured, the events around them,
// and which are still pending.
//
// A queue belongs to one thread and one context, so it needs no lock. Only the thread that ends the process
// looks at other threads' queues, and it skips a queue that is in use.

struct thread;

#define STREAM_PENDING 1024 // unread operations per queue

enum operation_state { STREAM_DONE, STREAM_RUNNING, STREAM_ISSUED };

struct operation {
    void *start, *end; // events in its stream
    uint64_t call;     // its time stamp
    uint64_t stream;
    const struct frame *owner; // while the call runs
    struct base *base;         // for the queue's user
    // For an operation whose parts are timed: called when it has ended, with the time stamp of its first
    // event, or 0. It's NULL otherwise.
    void (*ended)(const struct operation *operation, uint64_t begin);
    void *first_event;
    struct timed_graph *nodes;
    uint32_t api, function, thread;
    bool probed;
    _Atomic enum operation_state state; // the thread that ends the process may read it while the call returns
};

struct stream_queue {
    struct stream_queue *next; // this thread's next queue
    struct stream_queue *next_of_all;
    struct thread *thread;
    uint64_t context;
    uint32_t device;            // ordinal
    struct reference reference; // to the context, which owns everything in the queue
    atomic_bool busy;
    unsigned first, count, spares;
    struct operation pending[STREAM_PENDING]; // oldest first
    void *spare[2 * STREAM_PENDING];          // events
};

// The queues of one user: each has `size` bytes and starts with a struct stream_queue.
struct stream_queues {
    struct stream_queue **of_thread;
    struct stream_queue *_Atomic *all;
    size_t size;
};

// Functions of the driver; hook_streams_setup returns false if one of them is missing.
struct stream_functions {
    CUresult (*get_device)(CUdevice *), (*context_of)(void *, void **);
    CUresult (*create_stream)(void **, unsigned), (*is_capturing)(void *, int *), (*exchange_mode)(int *);
    CUresult (*create)(void **, unsigned), (*record)(void *, void *), (*query)(void *);
    CUresult (*elapsed)(float *, void *, void *);
};
extern struct stream_functions hook_cu;
bool hook_streams_setup(void);

uint64_t hook_stream_of(const struct frame *frame); // as the driver sees it; 0: the legacy default stream

// Streams that the driver created or accepted. We pass no other stream to the driver before the program's own
// call, which the driver may refuse without looking at the stream.
bool hook_stream_is_known(uint64_t stream);
void hook_know_stream(uint64_t stream);
void hook_forget_streams(uint64_t context); // streams of a context that ends; 0: all of them
extern handler hook_on_stream, hook_before_stream_gone;

// While the program captures a stream, the driver refuses most of our calls and invalidates the capture,
// unless the thread is in relaxed mode. Returns the previous mode.
int hook_stream_mode(int mode);

// Claim the thread's queue in its current context; hook_stream_release gives it back. NULL if there's no
// queue or it's in use. `make` creates a missing queue, zeroed after its struct stream_queue.
struct stream_queue *hook_stream_claim(const struct stream_queues *queues, struct thread *thread, bool make);
void hook_stream_release(struct stream_queue *queue);

void *hook_stream_event(struct stream_queue *queue); // an unused event, or NULL

// Start an operation before its call, with the first event. Returns NULL if the call is captured and so
// doesn't run, or without room.
struct operation *hook_stream_begin(struct stream_queue *queue, const struct frame *frame);
// After the call: record the second event if it succeeded.
void hook_stream_end(struct operation *operation, const struct frame *frame, bool done);

// Remove operations that have ended, without waiting. `see` may use both events.
void hook_stream_read(struct stream_queue *queue,
                      void (*see)(struct stream_queue *queue, struct operation *operation, bool ended));

// -- tensors.c -------------------------------------------------------------

// Tensors that the program names. gpt/tensors/__init__.py finds these functions among the process's symbols,
// and so can any other program.

// Record that a tensor exists under this name. The program chooses the `id` and never reuses it; a tensor
// with several names has one id. `address` is its lowest byte, `bytes` the distance to the end of its
// highest, `first` the address of its first element. Strings are cut to 1,023 bytes, `dims` to 64. `function`
// and `file` may be NULL. Returns 1 if it was recorded, 0 if recording is off.
EXPORT int gpt_hook_tensor(uint64_t id, const char *name, uint64_t address, uint64_t bytes, uint64_t first,
                           const char *dtype, const uint64_t *shape, uint64_t dims, const char *function,
                           const char *file, uint64_t line);

// The tensor is freed: its address may hold something else from now on.
EXPORT void gpt_hook_tensor_end(uint64_t id);

#endif
