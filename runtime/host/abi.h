// What code made by `gpt-asm --arch host` and what runs it (runtime/sim) share.
//
// A PTX function becomes a C function whose first argument is the simulated thread. Each thread has a stack
// of its own: where threads must meet, the code calls a service, which lets other threads run and returns
// when it may go on. Between such calls a thread of the simulated device is never interrupted by one of its
// own block; blocks run on several threads of the host at once.
//
// Addresses: .global, .param and generic ones are host addresses. Those of .shared, .local and .const are
// offsets from the beginning of a window: of the block, of the thread, of the module.

#ifndef GPT_HOST_ABI_H
#define GPT_HOST_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of barriers PTX has 16; the last one is the cluster's, whose only block this is.
enum { HOST_ABI = 4, HOST_WARP = 32, HOST_BARRIERS = 17 };

struct host_thread;

// The bytes around the address that an instruction used last: it may use any of them again.
struct host_place {
    uint64_t start, size;
};

// What threads that meet do once all are there: `data` has a pointer for each lane of `mask`, to what it gave
// and what it gets. Called once for all of them, on the stack of one.
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
    HOST_FAULT_INSTRUCTION, // operands that no such instruction has: a mask without the thread itself
    HOST_FAULT_ASSERT,
    HOST_FAULT_CLUSTER, // st.async, red.async: the launch has no clusters
};

// Functions of the program that runs the code. `site` says which instruction calls: its index in
// host_kernel.sites.
struct host_services {
    // Lets others run: a thread calls it after `budget` backward branches, and where it waits for memory to
    // change.
    void (*turn)(struct host_thread *, uint32_t site);
    // Waits until every lane of `mask` that hasn't exited has called meet with this mask and function; calls
    // the function once and returns the mask of the lanes that met. With mask 0 it waits until no other lane
    // of the warp can advance; the lanes that are then at this site meet.
    uint32_t (*meet)(struct host_thread *, uint32_t site, uint32_t mask, host_combine *, void *data);
    // bar and barrier: `threads` is a multiple of the warp's size, 0 for all of the block that have not
    // exited.
    uint32_t (*barrier)(struct host_thread *, uint32_t site, enum host_barrier, uint32_t id, uint32_t threads,
                        bool value);
    // For a global or generic address that is not in the instruction's place, nor in the thread's windows:
    // returns if the bytes may be accessed, having set the place.
    void (*see)(struct host_thread *, uint32_t site, uint64_t address, uint64_t size);
    // Ends the launch: does not return.
    void (*fault)(struct host_thread *, uint32_t site, enum host_fault, uint64_t address)
        __attribute__((noreturn));
    // vprintf: device addresses. Returns what it returns.
    int (*print)(struct host_thread *, uint32_t site, uint64_t format, uint64_t arguments);
    // __assertfail: device addresses of texts.
    void (*fail)(struct host_thread *, uint32_t site, uint64_t message, uint64_t file, uint32_t line,
                 uint64_t function) __attribute__((noreturn));
    // exit of a device function: the thread ends, as if its kernel returned.
    void (*exit)(struct host_thread *) __attribute__((noreturn));
    // malloc and free of device code; 0 if there is no memory.
    uint64_t (*allocate)(struct host_thread *, uint32_t site, uint64_t size);
    void (*release)(struct host_thread *, uint32_t site, uint64_t address);
};

struct host_thread {
    const struct host_services *services;
    // Where the windows begin, at multiples of 1024. That of local memory is the thread's stack, for code
    // keeps .local variables in its frames. That of shared memory has the static variables, then at a
    // multiple of host_kernel.shared_align the dynamic ones, and ends with them.
    unsigned char *shared, *local;
    const unsigned char *constant;
    uint32_t shared_size, local_size, constant_size; // bytes
    int32_t budget;            // backward branches until it calls turn, which sets it anew
    struct host_place *places; // by site
    const uint64_t *variables; // addresses of the variables, in the order of host_kernel.variables
    uint64_t *clock;           // instructions that the multiprocessor has executed
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t laneid, warpid, nwarpid, smid, nsmid;
    uint32_t dynamic_shared; // bytes, after the static ones
    uint64_t gridid;
    uint64_t workspace; // of a cooperative grid: address of its size and of the barrier's count; else 0
    uint32_t cluster;   // the launch has clusters, of one block each; else 0
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
    uint8_t shift;   // bits that the address is shifted right by first: 0xff00(x) takes its second byte
    uint8_t generic; // else it is an address of the variable's own space
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

// A shared object has `const struct host_module host_module`.
struct host_kernel {
    const char *name;
    host_entry *run;
    const struct host_parameter *parameters;
    uint32_t parameter_count, parameter_size; // bytes of all
    uint32_t shared_size, shared_align;       // static; dynamic shared memory begins at the next multiple
    uint32_t local_size;                      // bytes of .local of it and all that it calls, each once
    uint32_t max_threads;                     // of .maxntid and .reqntid; 0: not said
    uint32_t required[3];                     // .reqntid, or 0
    uint32_t barriers;
    uint32_t registers; // of .maxnreg; 0: not said
    uint32_t cluster;   // .explicitcluster, .reqnctapercluster: each launch has clusters
};

struct host_module {
    uint32_t abi;
    uint32_t kernel_count, variable_count, site_count;
    const struct host_kernel *kernels;
    const struct host_variable *variables;
    const char *const *sites; // "LINE: INSTRUCTION" of the PTX it was made of
};

// The address of a device function, the same in every module: what mov, and an initializer, give for its
// name.
static inline uint64_t host_address_of(const char *name) {
    uint64_t digest = 0xcbf29ce484222325;
    for (; *name; name++)
        digest = (digest ^ (unsigned char)*name) * 0x100000001b3;
    return 0x7e00000000000000 | (digest >> 8 & ~(uint64_t)15); // an address without memory
}

#endif
