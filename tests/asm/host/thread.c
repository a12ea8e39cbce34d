// thread OBJECT KERNEL: runs a kernel from an object made by `gpt-asm --arch host` as a single thread,
// without the simulated device. Standard input is a buffer whose address is the kernel's parameter; its final
// contents are written to standard output. A fault is reported as "FAULT SITE" on standard error, with
// status 1.

#include "host/abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK = 1 << 18, BUFFER = 1 << 24, WINDOW = 1 << 16 };

static const char *const fault_names[] = {"ADDRESS", "MISALIGNED", "SHARED",      "LOCAL", "STACK",
                                          "TRAP",    "FUNCTION",   "INSTRUCTION", "ASSERT"};
static const struct host_module *module;
static unsigned char *buffer;
static struct host_thread thread;
static ucontext_t caller, context;
static unsigned turns;

static _Noreturn void fault(struct host_thread *t, uint32_t site, enum host_fault what, uint64_t address) {
    (void)t;
    uint64_t offset = address - (uint64_t)buffer;
    fprintf(stderr, "%s %s +%lld\n", fault_names[what], module->sites[site], (long long)offset);
    exit(1);
}

static void see(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (address - (uint64_t)buffer > BUFFER - size)
        fault(t, site, HOST_FAULT_ADDRESS, address);
    t->places[site] = (struct host_place){(uint64_t)buffer, BUFFER};
}

static void turn(struct host_thread *t, uint32_t site) {
    if (++turns > 1000)
        fault(t, site, HOST_FAULT_ASSERT, 0);
    t->budget = 1000;
}

static uint32_t meet(struct host_thread *t, uint32_t site, uint32_t mask, host_combine *combine, void *data) {
    (void)site;
    (void)mask;
    void *all[HOST_WARP] = {0};
    all[t->laneid] = data;
    combine(all, 1u << t->laneid);
    return 1u << t->laneid;
}

static uint32_t barrier(struct host_thread *t, uint32_t site, enum host_barrier what, uint32_t id,
                        uint32_t threads, bool value) {
    (void)t, (void)site, (void)what, (void)id, (void)threads;
    return value;
}

static _Noreturn void leave(struct host_thread *t) {
    (void)t;
    setcontext(&caller);
    abort();
}

static uint64_t allocate(struct host_thread *t, uint32_t site, uint64_t size) {
    (void)t, (void)site, (void)size;
    return 0;
}

static const struct host_services services = {.turn = turn,
                                              .meet = meet,
                                              .barrier = barrier,
                                              .see = see,
                                              .fault = fault,
                                              .exit = leave,
                                              .allocate = allocate};

static const struct host_kernel *kernel;

static void run(void) { kernel->run(&thread, (const unsigned char *)&buffer); }

static void *aligned(size_t size) {
    void *memory = aligned_alloc(1024, size);
    if (!memory)
        abort();
    return memset(memory, 0, size);
}

// Gives each variable memory; variables in constant memory lie one after the other.
static void place_variables(void) {
    static unsigned char constant[WINDOW] __attribute__((aligned(1024)));
    static uint64_t addresses[256];
    uint32_t end = 0;
    for (uint32_t i = 0; i < module->variable_count; i++) {
        const struct host_variable *variable = &module->variables[i];
        unsigned char *place = buffer + BUFFER / 2 + 1024 * i;
        addresses[i] = (uint64_t)place;
        if (variable->space == HOST_CONST) {
            addresses[i] = end = (uint32_t)(-(-(uint64_t)end & -variable->align));
            place = constant + end;
            end += (uint32_t)variable->size;
        }
        if (variable->initial)
            memcpy(place, variable->initial, variable->size);
        for (uint32_t j = 0; j < variable->address_count; j++) {
            const struct host_address *one = &variable->addresses[j];
            uint64_t address = host_address_of(one->symbol);
            for (uint32_t k = 0; k < i; k++)
                if (!strcmp(module->variables[k].name, one->symbol))
                    address = addresses[k];
            address = (address + (uint64_t)one->addend) >> one->shift;
            memcpy(place + one->offset, &address, one->size);
        }
    }
    thread.variables = addresses;
    thread.constant = constant;
    thread.constant_size = end;
}

int main(int argc, char **argv) {
    void *object = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!object || !(module = dlsym(object, "host_module"))) {
        fprintf(stderr, "%s\n", object ? "no host_module" : dlerror());
        return 2;
    }
    for (uint32_t i = 0; i < module->kernel_count; i++)
        if (!strcmp(module->kernels[i].name, argv[2]))
            kernel = &module->kernels[i];
    if (!kernel)
        return 2;
    buffer = aligned(BUFFER);
    size_t size = fread(buffer, 1, BUFFER / 2, stdin);
    place_variables();
    static uint64_t clock;
    thread.services = &services;
    thread.dynamic_shared = 256;
    thread.shared_size = ((kernel->shared_size + kernel->shared_align - 1) & -kernel->shared_align) + 256;
    thread.shared = aligned(WINDOW);
    thread.local = aligned(STACK);
    thread.local_size = STACK;
    thread.budget = 1000;
    thread.places = calloc(module->site_count, sizeof(struct host_place));
    thread.clock = &clock;
    thread.laneid = 5;
    thread.cluster = 1;
    for (int i = 0; i < 3; i++) {
        thread.tid[i] = (uint32_t)i + 1;
        thread.ntid[i] = thread.nctaid[i] = 8;
    }
    getcontext(&context);
    context.uc_stack.ss_sp = thread.local;
    context.uc_stack.ss_size = STACK;
    context.uc_link = &caller;
    makecontext(&context, run, 0);
    swapcontext(&caller, &context);
    return fwrite(buffer, 1, size, stdout) != size;
}
