// A kernel with probes takes more registers than the program's: a block may be too large for it, a
// cooperative grid may not fit on the device, or a cluster not on its part of it. Then it is assembled once
// more with as few registers as such a launch leaves a thread. Until that has come, and where it is of no
// use, the program's runs.

#include "driver_calls.h"
#include "probe.h"

enum { WARP = 32, PARTITIONS = 4, UNIT = 256, MOST_REGISTERS = 255 };

static uint64_t device_attribute(int attribute) {
    CUdevice device;
    int value = 0;
    return !hook_do.get_device(&device) && !hook_do.device_attribute(&value, attribute, device) && value > 0
               ? (uint64_t)value
               : 0;
}

// A multiprocessor has parts, each with its share of registers and warps. A warp takes multiples of a unit.
// The numbers are those of the CUDA occupancy calculator; the earliest devices have larger parts.
unsigned hook_most_registers(uint64_t threads, uint64_t blocks) {
    uint64_t all = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    uint64_t block = blocks * device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    uint64_t warps = (threads + WARP - 1) / WARP * blocks, in_part = (warps + PARTITIONS - 1) / PARTITIONS;
    uint64_t of_part = (block < all ? block : all) / PARTITIONS;
    uint64_t most = in_part ? of_part / in_part / UNIT * UNIT / WARP : 0;
    return most < MOST_REGISTERS ? (unsigned)most : MOST_REGISTERS;
}

void hook_want_fewer(struct probed *first, unsigned registers) {
    unsigned before = atomic_load(&first->limit);
    while (registers && (!before || registers < before))
        if (atomic_compare_exchange_weak(&first->limit, &before, registers)) {
            struct looked_up fewer = first->asked;
            fewer.registers = registers;
            hook_ask_later(&fewer, first->name);
            return;
        }
}

const char *hook_find_obstacle(const struct probed *probed, const struct bound *bound, uint64_t threads) {
    const char *unfit = atomic_load_explicit(&probed->unfit, memory_order_relaxed);
    return unfit            ? unfit
           : bound->refused ? bound->refused
           : threads > (uint64_t)bound->max_threads
               ? "with probes a block of so many threads has too few registers"
               : NULL;
}

// How many blocks each multiprocessor must hold at once: those of a cooperative grid all are there.
static uint64_t count_resident(const struct launch *launch) {
    uint64_t processors = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    return launch->cooperative && processors ? (blocks + processors - 1) / processors : 1;
}

// A launch that does not fit without probes either is the driver's to refuse.
static void want_fewer(struct probed *first, const struct launch *launch, uint64_t threads,
                       uint64_t resident) {
    unsigned most = hook_most_registers(threads, resident), before = atomic_load(&first->limit);
    int blocks = 0;
    if ((!before || most < before) &&
        !hook_do.occupancy(&blocks, launch->function, (int)threads, launch->shared) &&
        (uint64_t)blocks >= resident)
        hook_want_fewer(first, most);
}

struct choice hook_choose(const struct launch *launch, uint64_t context) {
    struct probed *entry = hook_find_probed(launch->function);
    struct choice choice = {.reason = "it was found without its name, or is still being made"};
    choice.first = entry && entry->kernel ? hook_find_probed(entry->kernel) : entry;
    if (!choice.first || !hook_hold_probed(choice.first))
        return (struct choice){.reason = choice.reason};
    uint64_t of = entry->kernel ? entry->asked.context : choice.first->asked.context;
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2], resident = 0, there;
    bool small = false;
    if ((choice.reason = choice.first->refused)) {
        hook_let_probed_go(choice.first);
        return choice;
    }
    choice.reason = "it was not there with probes in this context yet";
    for (struct probed *at = choice.first; at && (!of || of == context);
         at = atomic_load_explicit(&at->fewer, memory_order_acquire)) {
        struct bound *bound = hook_find_bound(at, context);
        if (!bound) {
            hook_miss(at, context);
            continue;
        }
        choice.reason = hook_find_obstacle(at, bound, threads);
        small |= threads > (uint64_t)bound->max_threads;
        if (!choice.reason && launch->cooperative) {
            int blocks = 0;
            resident = resident ? resident : count_resident(launch);
            hook_do.occupancy(&blocks, bound->function, (int)threads, launch->shared);
            there = (uint64_t)blocks;
            if (there < resident) {
                choice.reason = "with probes its cooperative grid does not fit";
                small |= hook_most_registers(threads, resident) < at->used;
            }
        }
        if (!choice.reason) {
            choice.probed = at;
            choice.bound = bound;
            choice.handle = entry->is_library ? at->probed : bound->function;
            return choice;
        }
    }
    if (small)
        want_fewer(choice.first, launch, threads, resident ? resident : count_resident(launch));
    hook_let_probed_go(choice.first);
    return choice;
}

void hook_let_choice_go(const struct choice *choice) {
    if (choice->probed)
        hook_let_probed_go(choice->first);
}

// One that needs more than there is need not be tried again: a cluster of it does not fit, for example.
void hook_see_refusal(struct probed *probed, const struct launch *launch, CUresult status) {
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    struct probed *first = hook_find_whole(launch->function);
    int blocks = 0;
    if (status != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES && status != CUDA_ERROR_INVALID_CLUSTER_SIZE)
        return;
    atomic_store(&probed->unfit, REFUSED);
    if (first && !hook_do.occupancy(&blocks, launch->function, (int)threads, launch->shared))
        hook_want_fewer(first, hook_most_registers(threads, (uint64_t)blocks));
}
