// The interface between the code that `gpt-asm --arch host` makes and the simulated device that runs it
// (runtime/sim).
//
// A PTX function becomes a C function whose first argument is the simulated thread. Each thread has its own
// stack. Where threads have to wait for each other, the code calls a service, which runs other threads and
// returns when this one can continue. Between such calls, no other thread of the same block runs. Different
// blocks may run at the same time, on several host threads.
//
// Addresses in .global, .param and the generic space are host addresses. Addresses in .shared, .local and
// .const are offsets into a window: the block's shared memory, the thread's stack, or the module's constants.

#ifndef GPT_HOST_ABI_H
#define GPT_HOST_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// PTX has 16 barriers per block. There's one more for barrier.cluster, as every cluster consists of one
// block.
enum { HOST_ABI = 4, HOST_WARP = 32, HOST_BARRIERS = 17 };

struct host_thread;

// The allocation that an instruction accessed last. As long as its next accesses are inside, they need no
// other check.
struct host_place {
    uint64_t start, size;
};

// Combines the values of lanes that have met, for example in a shuffle. `data` has a pointer to the operands
// of each lane of `mask`, and results are stored in their place. It's called once for all lanes, on the stack
// of one of them.
typedef void host_combine(void *const data[HOST_WARP], uint32_t mask);

enum host_barrier {
    HOST_BARRIER_SYNC,
    HOST_BARRIER_ARRIVE, // does not wait
    HOST_BARRIER_POPC,   // how many threads gave a value that is not 0
    HOST_BARRIER_AND,
    HOST_BARRIER_OR,
};

enum host_fault {
    HOST_FAULT_ADDRESS,     // no such memory
    HOST_FAULT_MISALIGNED,  // the address is not a multiple of the size of the access
    HOST_FAULT_SHARED,      // outside of the block's shared memory
    HOST_FAULT_LOCAL,       // outside of the thread's local memory
    HOST_FAULT_STACK,       // calls too deep
    HOST_FAULT_TRAP,        // trap, brkpt
    HOST_FAULT_FUNCTION,    // a call to an address that isn't a function's
    HOST_FAULT_INSTRUCTION, // invalid operands, such as a mask without the thread itself
    HOST_FAULT_ASSERT,
    HOST_FAULT_CLUSTER, // st.async, red.async: the launch has no clusters
};

// The functions that the generated code can call. `site` identifies the instruction that calls: its index in
// host_kernel.sites.
struct host_services {
    // Lets other threads run. Called after `budget` backward branches, and in loops that wait for memory to
    // change.
    void (*turn)(struct host_thread *, uint32_t site);
    // Waits until every lane of `mask` that hasn't exited has called meet with this mask and function. Then
    // calls the function once, and returns the mask of the lanes that met. With mask 0, which is for
    // instructions without a mask, it waits until no other lane of the warp can advance; then the lanes at
    // this site meet.
    uint32_t (*meet)(struct host_thread *, uint32_t site, uint32_t mask, host_combine *, void *data);
    // bar and barrier. `threads` is a multiple of the warp's size, or 0 for all threads of the block that
    // haven't exited.
    uint32_t (*barrier)(struct host_thread *, uint32_t site, enum host_barrier, uint32_t id, uint32_t threads,
                        bool value);
    // Checks an access to a global or generic address that's neither in the instruction's place nor in a
    // window of the thread. If the bytes may be accessed, updates the place and returns; otherwise ends the
    // launch.
    void (*see)(struct host_thread *, uint32_t site, uint64_t address, uint64_t size);
    // Ends the launch: does not return.
    void (*fault)(struct host_thread *, uint32_t site, enum host_fault, uint64_t address)
        __attribute__((noreturn));
    // As vprintf, but the addresses are the device's. Returns what vprintf returns.
    int (*print)(struct host_thread *, uint32_t site, uint64_t format, uint64_t arguments);
    // __assertfail, with the device addresses of its texts.
    void (*fail)(struct host_thread *, uint32_t site, uint64_t message, uint64_t file, uint32_t line,
                 uint64_t function) __attribute__((noreturn));
    // exit in a device function: ends the thread as if its kernel had returned.
    void (*exit)(struct host_thread *) __attribute__((noreturn));
    // malloc and free for device code; 0 if out of memory.
    uint64_t (*allocate)(struct host_thread *, uint32_t site, uint64_t size);
    void (*release)(struct host_thread *, uint32_t site, uint64_t address);
};

struct host_thread {
    const struct host_services *services;
    // Where the windows begin, at multiples of 1024. The local window is the thread's stack, because
    // generated functions have their .local variables in their C frames. The shared window has the static
    // variables and, from the next multiple of host_kernel.shared_align to its end, the dynamic ones.
    unsigned char *shared, *local;
    const unsigned char *constant;
    uint32_t shared_size, local_size, constant_size; // bytes
    int32_t budget;            // backward branches until the code calls turn, which resets it
    struct host_place *places; // by site
    const uint64_t *variables; // addresses of the variables, in the order of host_kernel.variables
    uint64_t *clock;           // instructions that the multiprocessor has executed
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t laneid, warpid, nwarpid, smid, nsmid;
    uint32_t dynamic_shared; // bytes, after the static ones
    uint64_t gridid;
    uint64_t
        workspace;    // for a cooperative grid, the address of its size and the barrier's count; otherwise 0
    uint32_t cluster; // the launch has clusters, of one block each; else 0
};

typedef void host_entry(struct host_thread *, const unsigned char *parameters);

struct host_parameter {
    uint32_t offset, size;
};

// A part of a variable's initial value that is an address: of a variable, or of a function (host_address_of).
struct host_address {
    uint64_t offset;
    const char *symbol;
    int64_t addend;
    uint8_t size;    // bytes that are stored
    uint8_t shift;   // shift the address right by this many bits first: 0xff00(x) is its second byte
    uint8_t generic; // otherwise an address in the variable's own space
};

enum host_space { HOST_GLOBAL, HOST_CONST };

struct host_variable {
    const char *name;
    uint64_t size, align;
    const void *initial; // or NULL: zero
    const struct host_address *addresses;
    uint32_t address_count;
    uint8_t space; // enum host_space
    uint8_t external;
};

// Each shared object defines `const struct host_module host_module`.
struct host_kernel {
    const char *name;
    host_entry *run;
    const struct host_parameter *parameters;
    uint32_t parameter_count, parameter_size; // bytes of all
    uint32_t shared_size, shared_align;       // static; dynamic shared memory begins at the next multiple
    uint32_t local_size;  // bytes of .local in the kernel and all functions it calls, each counted once
    uint32_t max_threads; // from .maxntid or .reqntid; 0: neither given
    uint32_t required[3]; // .reqntid, or 0
    uint32_t barriers;
    uint32_t registers; // from .maxnreg; 0: not given
    uint32_t cluster;   // .explicitcluster, .reqnctapercluster: each launch has clusters
};

struct host_module {
    uint32_t abi;
    uint32_t kernel_count, variable_count, site_count;
    const struct host_kernel *kernels;
    const struct host_variable *variables;
    const char *const *sites; // "LINE: INSTRUCTION" in the original PTX
};

// Return the address of a device function, as mov and initializers see it. It's the same in every module.
static inline uint64_t host_address_of(const char *name) {
    uint64_t digest = 0xcbf29ce484222325;
    for (; *name; name++)
        digest = (digest ^ (unsigned char)*name) * 0x100000001b3;
    return 0x7e00000000000000 | (digest >> 8 & ~(uint64_t)15); // an address without memory
}

#endif
