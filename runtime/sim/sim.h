// The simulated device: a libcuda.so.1 whose device memory is host memory and whose one device is the CPU.
//
//   object.c   the objects behind handles: who owns what, and reuse of their memory
//   environment.c  variables that set it up, and messages
//   device.c   initialization, the device; attributes.c: its attributes and limits; errors.c: error codes
//   context.c  contexts, and which one is current
//   settings.c settings of contexts and functions, peers
//   range.c    the allocated memory; memory.c: device memory, pinned memory; pool.c, virtual.c: other ways to
//              allocate; pointer.c: pointer attributes
//   copy.c     copies and memsets
//   image.c    images, and objects of gpt-asm; their kinds: fatbin.c, cubin.c, outline.c (gpt-asm's
//              outline of PTX); code.c: the kernels and variables read from them
//   build.c    host code of PTX; cache.c keeps it, host.c loads it
//   module.c   modules, libraries, kernels and functions; function.c: their attributes
//   heap.c     malloc of device code
//   link.c     linking PTX to PTX; devrt.c: our part of the device runtime; jit.c: cuLink*, compiler logs
//   occupancy.c  how many blocks fit
//   launch.c   launches
//   stream.c   streams; queue.c: their work and the threads that do it; event.c: events
//   graph_memory.c  memory that graphs allocate
//   streamops.c  values that streams write and wait for
//   capture.c  streams whose work becomes a graph
//   graph.c    graphs; node.c: adding nodes; params.c: their parameters; exec.c: executable graphs
//   user.c     data that graphs keep
//   perthread.c  variants for the per-thread default stream; old.c: earlier variants
//   proc.c     looking up functions; table.c has all of them, abi/driver.h lists them
//
// run.h explains how kernels run.

#ifndef GPT_SIM_H
#define GPT_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/cuda.h"

// A driver function: programs find a stub by its name (table.c), the function itself is sim_NAME.
#include "sim/renamed.h"
#define API CUresult

// One lock guards all objects. It's released while an operation runs or a function of the program is called.
extern pthread_mutex_t sim_lock;
static inline int sim_acquire(void) {
    pthread_mutex_lock(&sim_lock);
    return 0;
}
static inline void sim_unlock(const int *unused) {
    (void)unused;
    pthread_mutex_unlock(&sim_lock);
}
#define LOCKED __attribute__((cleanup(sim_unlock), unused)) const int locked_ = sim_acquire()

// object.c

enum kind {
    CONTEXT = 0x47505431,
    STREAM,
    EVENT,
    LIBRARY,
    KERNEL,
    MODULE,
    FUNCTION,
    GRAPH,
    NODE,
    CONDITION,
    EXEC,
    POOL,
    PHYSICAL,
    LINK,
    USER,
    HELD,
    ALLOCATION,
};

// The memory behind a handle begins with its kind. An object is deleted with its owner.
struct object {
    enum kind kind;  // 0: free
    uint64_t serial; // unique among all objects ever made; tells apart objects that reuse the memory
    struct object *owner, *owned; // the newest object that it owns
    struct object *older, *newer; // its owner's other objects
};

enum { OBJECT_SIZE = 256 };

void *sim_new(enum kind kind, void *owner); // zero after the head; NULL if memory runs out
void sim_delete(void *object);              // with all that it owns, newest first
void sim_give(void *object, void *owner);   // `object` has no owner yet
// Return `array` with room for one more than `count`, or NULL if memory runs out.
void *sim_grow(void *array, size_t count, size_t *room, size_t item);

static inline bool is_kind(const void *handle, enum kind kind) {
    enum { SPECIAL = 4096 }; // smaller handles aren't addresses but default streams
    return (uintptr_t)handle > SPECIAL && ((const struct object *)handle)->kind == kind;
}

// A reference to an object that may be deleted before it: compare the serial numbers to find out.
struct reference {
    void *object;
    uint64_t serial;
};
static inline struct reference sim_refer(void *object) {
    return (struct reference){object, object ? ((struct object *)object)->serial : 0};
}
static inline bool is_there(struct reference to) {
    return to.object && ((struct object *)to.object)->kind &&
           ((struct object *)to.object)->serial == to.serial;
}

// Functions by kind, called before an object is deleted, to free everything it holds besides other objects.
// Each file sets the function for its kind when the library is loaded; NULL means that there's nothing to
// free.
extern void (*sim_ends[])(struct object *object);
#define AT_END(kind, end)                                                                                    \
    __attribute__((constructor)) static void set_end_of_##kind(void) { sim_ends[kind - CONTEXT] = end; }

// environment.c
extern int sim_major, sim_minor; // the compute capability
extern bool sim_strict;          // queries about deleted functions end the program
extern unsigned sim_load_delay;  // minimum microseconds to load
extern uint64_t sim_delay;       // minimum ns per operation
extern uint64_t sim_memory;      // bytes of device memory; 0: as much as the machine has
extern bool sim_runs;            // run kernels; otherwise launches are accepted and do nothing
extern const char *sim_twins;    // the folder with PTX by which cubins run, or NULL; see cubin.c
extern unsigned sim_timeout;     // seconds without progress until a launch is ended; 0: never
bool sim_read_environment(void); // sets these; false, with a message the first time, if a value is invalid
size_t sim_total_memory(void);   // bytes
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2))); // an error
void sim_say_once(const char *format, ...)
    __attribute__((format(printf, 1, 2))); // unless it was the last message, or kernels don't run
void sim_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern __thread char sim_said[1024]; // the last error of this thread

// attributes.c
struct context;
int sim_attribute(int attribute);
unsigned sim_processors(void);
uint64_t sim_limit(const struct context *context, int limit);

// jit.c
struct jit { // the log buffers a program passes; the options must stay valid
    struct jit_log {
        char *text;
        uintptr_t room;
        void **size; // receives the number of bytes written
    } errors, information;
};
CUresult sim_read_jit(struct jit *jit, unsigned count, const int *options, void **values); // forgets sim_said
CUresult sim_log_jit(const struct jit *jit,
                     CUresult status); // logs the last message if `status` is an error; returns `status`

// context.c
struct context {
    struct object object;
    CUresult error;        // the error that broke it
    unsigned busy;         // streams with work to do
    unsigned references;   // references to the primary context
    struct stream *legacy; // its default stream
    unsigned flags;
    uint64_t limits[CU_LIMIT_MAX]; // 0: not set
    int cache_config;
    struct heap *heap; // for device code; NULL: not used yet
};
CUresult sim_enter(struct context **context); // the current one; fails if no call may be made in it
// The first fault of a kernel, or 0. As with NVIDIA's driver, every later call returns it, in every context,
// and the process can't use the device again.
extern CUresult sim_fault_status;
bool sim_note_fault(CUresult status); // false: not an error of a kernel
static inline CUresult sim_error_of(const struct context *context) {
    return sim_fault_status ? sim_fault_status : context->error;
}

// Begins a call that needs a context.
#define IN_CONTEXT                                                                                           \
    LOCKED;                                                                                                  \
    struct context *context;                                                                                 \
    CUresult entered_ = sim_enter(&context);                                                                 \
    if (entered_)                                                                                            \
    return entered_

// Begins such a call if it could disturb a capture.
#define IN_CONTEXT_UNCAPTURED                                                                                \
    IN_CONTEXT;                                                                                              \
    if ((entered_ = sim_unsafe()))                                                                           \
    return entered_

// range.c: the allocated memory
struct range {
    uint64_t start, size, serial;
    const void *owner; // a context, a module
    enum memory { DEVICE, MANAGED, PINNED, REGISTERED, MAPPED, OF_GRAPH } type;
    unsigned flags; // the program's choice
    struct reference pool;
    uint64_t until;    // a free was issued: work from this number on may not use the memory; 0: all may
    bool frees_itself; // memory of graphs: launch `until` may use it too while the memory exists
};
bool sim_add_range(uint64_t start, uint64_t size, const void *owner, enum memory type);
bool sim_drop_range(uint64_t start, enum memory type);        // false: no range of this type starts there
struct range *sim_range_from(uint64_t start);                 // the range that starts there, or NULL
const struct range *sim_range(uint64_t start, uint64_t size); // the range that contains these bytes, or NULL
bool sim_overlaps(uint64_t start, uint64_t size);
bool sim_is_pinned(uint64_t start, uint64_t size);
bool sim_is_gone(uint64_t address); // it was freed, or no graph has allocated it yet
void sim_set_until(uint64_t start, uint64_t until, bool frees_itself);
uint64_t sim_used(const void *pool); // bytes
bool sim_take_memory(uint64_t size); // device memory; false: not enough left
void sim_give_memory(uint64_t size);
uint64_t sim_taken_memory(void);
void sim_free_all(const void *owner);
bool sim_wait_for_free(void); // waits for a free in a stream; false: none is pending
// Find memory that work of this number may use, including memory freed since. Call it without the lock.
bool sim_find_memory(uint64_t address, uint64_t size, uint64_t number, uint64_t *start, uint64_t *room);
bool sim_find_freed(uint64_t address, uint64_t size, uint64_t number);
void sim_describe(uint64_t address, char text[256]); // for a message; without the lock

// memory.c
CUresult sim_allocate(CUdeviceptr *memory, size_t size, void *owner);
CUresult sim_allocate_from(CUdeviceptr *memory, size_t size, void *owner, void *pool);
CUresult sim_free(CUdeviceptr memory);

// copy.c
// Check a copy's or memset's arguments. `node`: it's for a graph node, which may use memory that a launch of
// its graph allocates later.
CUresult sim_check_copy(const CUDA_MEMCPY3D *copy, bool node);
CUresult sim_check_set(const CUDA_MEMSET_NODE_PARAMS_v2 *set, bool node);
void sim_run_copy(const CUDA_MEMCPY3D *copy);
void sim_run_set(const CUDA_MEMSET_NODE_PARAMS_v2 *set);

// heap.c: malloc of device code. Only device code frees this memory. These don't need the lock.
uint64_t sim_heap_take(struct context *context, uint64_t size); // 0 if memory runs out
bool sim_heap_give(struct context *context, uint64_t address);  // false: not from malloc, or already freed
bool sim_heap_has(const struct context *context, uint64_t address, uint64_t size);
bool sim_heap_describe(const struct context *context, uint64_t address, char text[256]); // as sim_describe
void sim_end_heap(struct context *context);

// code.c
struct parameter {
    size_t offset, size;
};
struct entry { // a kernel of an image
    const char *name;
    struct parameter *parameters;
    size_t count;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    const char *text; // the PTX that contains it, or NULL
    size_t text_size;
    enum { NOT_MADE, BEING_MADE, MADE, NOT_MAKEABLE } state; // state of its host code
    CUresult fault;                                          // why it can't be compiled
    void *object;                                            // its own object, or NULL: the image's
    const struct host_module *module;
    const struct host_kernel *kernel;
};
struct variable {
    const char *name;
    size_t size, align;
    bool constant;
    const void *initial;                  // or NULL: zero
    size_t initial_size;                  // the rest is zero
    const struct host_address *addresses; // addresses inside its value
    size_t address_count;
};
struct code {
    unsigned references;
    bool packed;  // has parts that can't be read: any name may be in them
    bool starved; // memory ran out while it was read, so something is missing
    struct entry *entries;
    struct variable *variables;
    size_t entry_count, variable_count, entry_room, variable_room;
    struct block *blocks; // memory for all of this
    const char *text;     // if the image is PTX, or NULL
    size_t text_size;
    const char *outline; // gpt-asm's outline of the last PTX that was read
    size_t outline_size;
    void *object; // if the image is host code
};
void sim_release_code(struct code *code);
void sim_close_objects(void); // after their code was released; without the lock
CUresult sim_read_whole(const char *path, char **bytes, size_t *size); // zero-terminated, to be freed
void sim_set_sizes(struct entry *entry, size_t shared, size_t local);  // sets the sizes of its static memory
void sim_set_registers(struct entry *entry, unsigned long registers);

// image.c
// Read the code for this device from an image. `room` is the image's size, or SIZE_MAX if the program passed
// only an address, as to the driver. The image isn't used after that.
CUresult sim_read_image(struct code **code, const void *start, size_t room);
CUresult sim_read_file(struct code **code, const char *path);

// fatbin.c
// Call `use` with the PTX of an image that suits the device best, and return its status. Call it without the
// lock.
CUresult sim_each_ptx(const void *image, size_t room, CUresult (*use)(void *, const char *, size_t),
                      void *data);

// build.c
// Make sure that a kernel has host code. Call it with the lock held, which may be released meanwhile.
CUresult sim_make_kernel(struct code *code, struct entry *entry);
// outline.c
// Check that a PTX image is for this device and that its kernels can be compiled to host code. If it has only
// one kernel, the check compiles it. Call it without the lock.
CUresult sim_check_text(struct code *code);

// Decompress the PTX in an element of a fatbin. The caller frees the text. With GPT_WANT_OUTLINE, its outline
// goes into the cache, else `want` is GPT_WANT_TEXT. Call it without the lock.
CUresult sim_unpack(const struct fatbin_element *element, const char *want, char **text, size_t *size);

// link.c
// Link the PTX of a NULL-terminated list of fatbins into one text, which the caller frees. Call it without
// the lock.
CUresult sim_link_fatbins(const void *const *fatbins, char **text);

// host.c
void *sim_open_object(const char *bytes, size_t size); // without the lock; NULL after an error message
const struct host_module *sim_module_of(void *object);
void sim_describe_entry(struct entry *entry); // sets the attributes that its host code states

// variables.c
struct bound { // addresses of the variables of an object
    struct bound *next;
    const struct host_module *module;
    uint64_t addresses[];
};
struct variables {       // a module's variables
    uint64_t *addresses; // generic addresses, by number in its code; NULL: not needed yet
    uint64_t constant;   // the start of the window
    uint32_t constant_size;
    struct bound *bound;
};
size_t sim_constant_size(const struct code *code); // total bytes of variables in constant memory
CUresult sim_place_variables(struct variables *variables, const struct code *code, void *owner);
// `missing` is set to the variable looked up last.
CUresult sim_bind_variables(const uint64_t **bound, struct variables *variables, const struct code *code,
                            void *owner, const struct host_module *module, const char **missing);
void sim_end_variables(struct variables *variables);

// module.c
struct function { // also a kernel
    struct object object;
    struct entry *entry; // or NULL: the image can't be read
    char *name;
    struct reference kernel; // to the kernel of a library, if the function came from one
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    uint32_t set;            // bits: attributes that the program set
    struct earlier *earlier; // or NULL: settings of the API before CUDA 4.0
};
int sim_function_attribute(const struct function *function, int attribute);
// occupancy.c: how many blocks a multiprocessor holds at once
uint64_t sim_resident_blocks(const struct function *function, uint64_t threads, size_t dynamic);
struct library { // also a module
    struct object object;
    struct code *code;
    struct library *from;    // the library that this is the module of, or NULL
    struct library *modules; // the library's modules, newest first
    struct library *next;    // in the list of `from`
    struct variables variables;
};
CUresult sim_module_in(struct library **module, struct context *context, const struct function *function);

// launch.c

// The work of a stream operation or a graph node, by CU_GRAPH_NODE_TYPE_*.
struct operation {
    int type;
    void *owned;    // arguments of a kernel, operations of a graph, bytes of a copy read when it was issued
    bool wrong;     // its graph was launched while memory that it needs didn't exist
    bool by_caller; // a copy that the calling thread makes itself, in stream order
    union {
        struct {
            struct reference function;
            uint32_t grid[3], block[3], shared;
            bool cooperative;
            bool cluster;     // the launch sets cluster dimensions
            bool packed;      // the arguments were passed packed: CUDA doesn't return a node's
            void **arguments; // point into `owned`; NULL: unknown
        } kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS_v2 set;
        struct {          // a graph launch
            size_t count; // operations in `owned`
            void *held;   // a graph, for its user objects
        };
        struct {
            void (*function)(void *);
            void *data;
            void (*callback)(void *, CUresult, void *); // or a callback, with the stream
            void *stream;
        } host;
        struct reference event;
        CUdeviceptr memory;
    };
};
CUresult sim_check_attribute(int id, const void *value);    // an attribute of a launch, a stream or a node
bool sim_is_cluster(const void *dimensions, bool *cluster); // false: unsupported or invalid
CUresult sim_make_launch(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool keep);

// stream.c
struct nodes { // during capture: the nodes that the next one depends on
    struct node **nodes;
    size_t count;
};
struct stream {
    struct object object; // its context
    unsigned flags;
    int priority;
    struct queue *queue; // its work
    bool of_thread;      // it's the default stream of `thread`
    pthread_t thread;
    struct capture *capture;
    struct stream *next; // in the capture
    struct nodes last;
};
struct event {
    struct object object;
    unsigned flags;
    uint64_t time;    // ns, when it completed; 0: never recorded
    uint64_t reached; // ns, when a graph in `pending` got to it; 0: not yet
    struct work *pending;
    uint64_t capture; // the capture it was recorded in, or 0
    struct nodes last;
};
enum { SIM_URGENT = -5 }; // the highest priority; has no effect
struct stream *sim_add_stream(struct context *context, unsigned flags, int priority);
struct stream *sim_stream(struct context *context,
                          void *handle); // default streams: this context's; NULL: not a stream
CUresult sim_issue(struct stream *stream, struct operation *operation); // takes it over
CUresult sim_wait(struct stream *stream);
extern __thread bool sim_per_thread; // in this call the default stream is the thread's

// event.c
void sim_record(struct event *event, struct stream *stream);
CUresult sim_wait_event(struct stream *stream, struct event *event);

// queue.c

// Functions of launch.c and range.c that queue.c calls.
extern bool (*sim_copy_operation)(struct operation *to, const struct operation *from);
extern void (*sim_end_operation)(struct operation *operation);
// Run an operation as work with this number. Call it without the lock.
extern CUresult (*sim_run)(struct context *context, struct operation *operation, uint64_t number);
extern void (*sim_after_work)(void); // frees memory that no pending work may use any more

void sim_drain(struct context *context, bool all);
uint64_t sim_next_work(void);              // the number of the next work
uint64_t sim_oldest_work(void);            // the lowest number pending
bool sim_wait_for_number(uint64_t number); // false: no pending work has it
void sim_end_queues(const struct context *context);
extern __thread bool sim_in_host_function;
extern int sim_callbacks; // threads that are running one

// context.c: called before and after a host function or callback; its thread has the stream's context
void sim_begin_callback(struct context *context);
void sim_end_callback(void);

// capture.c: streams whose work becomes a graph
struct capture {
    struct capture *next;
    uint64_t id;
    int mode;
    bool invalid;
    pthread_t thread; // the thread that began the capture
    struct graph *graph;
    bool given; // the graph belongs to the program
    struct stream *origin, *streams;
    struct nodes left; // last nodes of destroyed streams, which must still be joined
};
// Takes over the operation.
CUresult sim_capture(struct stream *stream, struct operation *operation);
CUresult sim_capture_event(struct stream *stream, struct event *event);
CUresult sim_capture_wait(struct stream *stream, struct event *event);
bool sim_is_captured(const struct event *event);
CUresult sim_refuse_event(const struct event *event); // fails if it was recorded in a capture
void sim_leave_capture(struct stream *stream);        // the stream is being destroyed
CUresult sim_implicit(const struct stream *stream);   // fails if work can't be issued to it: it's the legacy
                                                      // stream, during a capture
CUresult
sim_refuse_capture(struct stream *stream); // for operations that can't be captured; invalidates the capture
CUresult sim_refuse_captures(const struct context *context); // for operations that wait for all streams
CUresult sim_unsafe(void); // fails if this thread may not make calls that could disturb a capture

// graph_memory.c
CUresult sim_make_graph_memory(struct operation *operation, size_t size, const CUmemPoolProps *props,
                               struct context *context); // makes the operation that allocates the memory
void sim_hold_graph_memory(const struct operation *operation),
    sim_release_graph_memory(const struct operation *);
bool sim_is_graph_memory(uint64_t start, uint64_t size);   // even if no launch has allocated it
bool sim_begin_free(CUdeviceptr memory, CUresult *status); // a free was issued; false: not memory of graphs
bool sim_free_graph_memory(CUdeviceptr memory);            // a free runs; false: not memory of graphs
void sim_end_graph_memory(const struct context *context);
CUresult sim_check_free_node(const struct graph *graph, CUdeviceptr memory);
// Return whether a copy or memset needs memory that a node of the graph frees.
bool sim_uses_freed(const struct graph *graph, const struct operation *operation);
bool sim_has_memory(const struct graph *graph);
CUresult sim_reserve_graph_memory(const struct operation *all, size_t count);
CUresult sim_check_launch(const struct operation *all, size_t count, bool frees_first);
// `lacks_memory` says whether an operation needs memory that isn't there now.
void sim_note_launch(struct operation *all, size_t count, bool (*lacks_memory)(const struct operation *));
void sim_describe_graph_memory(uint64_t start, CUDA_MEM_ALLOC_NODE_PARAMS *params);

// proc.c and table.c

// Shows that the driver is initialized: cuInit sets the first byte. The kernel clears this page in a forked
// child (MADV_WIPEONFORK), so a child of an initialized process can't use the driver, as with NVIDIA's.
enum { SIM_PAGE = 4096 };
extern char sim_ready[SIM_PAGE];

struct sim_function {
    const char *name; // the name passed to cuGetProcAddress
    int since;        // the first CUDA version with this variant
    void *address;
    void *per_thread; // the variant whose default stream is the thread's, or NULL
};
extern const struct sim_function sim_functions[];

#endif
