// The driver's library: its address range, and the functions it exports.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct symbol {
    uintptr_t address;
    const char *name;
};

struct driver {
    uintptr_t start, end, dynamic; // the address range that it occupies
    const void *map;
    size_t count, room;
    struct symbol symbols[]; // its functions by address
};

static _Atomic(struct driver *) the_driver;

static int by_address(const void *a, const void *b) {
    const struct symbol *one = a, *two = b;
    if (one->address != two->address)
        return one->address < two->address ? -1 : 1;
    return strcmp(one->name, two->name);
}

static void *pages(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static void count_function(void *state, uintptr_t address, const char *name) {
    (void)address, (void)name;
    ++*(size_t *)state;
}

static void keep_function(void *state, uintptr_t address, const char *name) {
    struct driver *driver = state;
    if (driver->count < driver->room)
        driver->symbols[driver->count++] = (struct symbol){address, name};
}

static struct driver *read_driver(const struct linked *linked) {
    size_t count = 0;
    hook_each_function(linked, count_function, &count);
    struct driver *driver = pages(sizeof(*driver) + count * sizeof(struct symbol));
    if (!driver)
        return NULL;
    driver->start = linked->address;
    driver->end = linked->end;
    driver->dynamic = linked->dynamic;
    driver->map = linked->map;
    driver->room = count;
    hook_each_function(linked, keep_function, driver);
    qsort(driver->symbols, driver->count, sizeof(*driver->symbols), by_address);
    atomic_store(&the_driver, driver); // never free an old one: another thread may be reading it
    return driver;
}

// Return the driver that contains an address, or NULL.
static struct driver *find_of(const void *address) {
    struct driver *driver = atomic_load(&the_driver);
    if (driver && (uintptr_t)address - driver->start < driver->end - driver->start)
        return driver;
    struct linked linked;
    return hook_linked_of(address, &linked) && hook_is_driver(&linked) ? read_driver(&linked) : NULL;
}

static struct driver *find_driver(void) {
    struct driver *driver = atomic_load(&the_driver);
    for (struct linked linked = {0}, whole; !driver && hook_next_linked(&linked);)
        if (hook_is_driver(&linked) && hook_linked_of((const void *)linked.dynamic, &whole)) {
            whole.in_use = false; // another thread may close it now
            driver = read_driver(&whole);
        }
    return driver;
}

const char *hook_driver_symbol(const void *address) {
    const struct driver *driver = find_of(address);
    size_t low = 0, high = driver ? driver->count : 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (driver->symbols[middle].address < (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    for (; driver && low < driver->count && driver->symbols[low].address == (uintptr_t)address; low++)
        if (!strncmp(driver->symbols[low].name, "cu", 2))
            return driver->symbols[low].name;
    return NULL;
}

bool hook_in_driver(const void *address) { return find_of(address); }

bool hook_has_driver(void) { return find_driver(); }

void *hook_driver_function(const char *symbol) {
    const struct driver *driver = find_driver();
    for (size_t i = 0; driver && i < driver->count; i++)
        if (!strcmp(driver->symbols[i].name, symbol))
            return (void *)driver->symbols[i].address;
    return NULL;
}

_Atomic int hook_drivers_gone;

bool hook_find_again(_Atomic int *found, bool (*find_all)(void), int number) {
    if (hook_has_driver()) {
        pthread_mutex_lock(&hook_watched->finding);
        if ((atomic_load(found) & ~1) != number)
            atomic_store(found, number + find_all());
        pthread_mutex_unlock(&hook_watched->finding);
    }
    return atomic_load(found) & 1;
}

bool hook_driver_is_simulated(void) { return hook_driver_function("gpt_sim_runs"); }

const char *hook_driver_runs(void) {
    const char *(*runs)(void) = hook_driver_function("gpt_sim_runs");
    return runs ? runs() : "sass";
}

// Another library may be mapped where a closed driver was.
bool hook_forget_driver(struct span *was) {
    struct driver *driver = atomic_load(&the_driver);
    bool there = !driver;
    for (struct linked linked = {0}; !there && hook_next_linked(&linked);)
        there = linked.map == driver->map && linked.address == driver->start &&
                linked.dynamic == driver->dynamic && hook_is_driver(&linked);
    if (there || !atomic_compare_exchange_strong(&the_driver, &driver, NULL))
        return false;
    *was = (struct span){driver->start, driver->end};
    atomic_fetch_add(&hook_drivers_gone, 1);
    return true;
}

// -- Devices ---------------------------------------------------------------
//
// The devices, as `device` records. The driver queries here have no effect that the program could notice.

#define WARP 32 // threads

typedef CUresult attribute_fn(int *value, int which, CUdevice device);

// Ask the driver for an attribute of a device, in multiples of `unit`; 0 if it doesn't say.
static struct gpt_u64 ask(attribute_fn *attribute, int which, int device, uint64_t unit) {
    int value;
    bool known = !attribute(&value, which, device) && value > 0;
    return known ? GPT_U64((uint64_t)value * unit) : (struct gpt_u64){false, 0};
}

void hook_see_device(int device) {
    if (device < 0 || device >= MAX_DEVICES || !hook_this_thread() ||
        atomic_fetch_or(&hook_watched->devices, 1ull << device) >> device & 1)
        return;
    attribute_fn *attribute = hook_driver_function("cuDeviceGetAttribute");
    CUresult (*get_name)(char *, int, CUdevice) = hook_driver_function("cuDeviceGetName");
    CUresult (*get_uuid)(CUuuid *, CUdevice) = hook_driver_function("cuDeviceGetUuid_v2");
    int major, minor;
    if (!attribute || attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return;
    char name[256] = "", arch[32], text[64] = "";
    if (get_name && get_name(name, sizeof(name) - 1, device))
        name[0] = '\0';
    snprintf(arch, sizeof(arch), "sm_%d%d", major, minor);
    CUuuid uuid;
    if (get_uuid && !get_uuid(&uuid, device)) {
        int at = sprintf(text, "GPU");
        for (int i = 0; i < 16; i++)
            at += sprintf(text + at, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                          (unsigned char)uuid.bytes[i]);
    }
    struct gpt_u64 warps = ask(attribute, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device, 1);
    warps.value /= WARP;
    HOOK_WRITE(device, .index = (uint64_t)device, .name = hook_str(name), .arch = hook_str(arch),
               .uuid = hook_str(*text ? text : NULL), .runs = hook_str(hook_driver_runs()),
               .sms = ask(attribute, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device, 1), .warps = warps,
               .blocks = ask(attribute, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device, 1),
               .clock_hz = ask(attribute, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device, 1000),
               .memory_hz = ask(attribute, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device, 1000),
               .bus_bits = ask(attribute, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device, 1));
}

// -- State of the process --------------------------------------------------

struct watched *hook_watched;

bool hook_watched_setup(void) {
    hook_watched = hook_process_memory(sizeof(*hook_watched));
    return hook_watched;
}

_Atomic uint64_t *hook_find_in_map(struct map *map, uint64_t key) {
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 40;
    for (unsigned tries = 0; tries < 256; tries++, at++) {
        uint64_t found = atomic_load_explicit(&map->keys[at % MAP_ENTRIES], memory_order_acquire);
        if (!found &&
            (atomic_compare_exchange_strong(&map->keys[at % MAP_ENTRIES], &found, key) || found == key))
            return &map->values[at % MAP_ENTRIES];
        if (found == key)
            return &map->values[at % MAP_ENTRIES];
    }
    return NULL;
}
