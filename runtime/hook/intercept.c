// How a program comes to hold stubs. It has three ways to the driver's functions:
//
//   - it is linked to libcuda.so.1: the symbols of the stubs are found before the driver's, and the real
//     function is looked for at the first call;
//   - dlsym: defined here. Real functions of the driver that it finds are exchanged for stubs;
//   - cuGetProcAddress, itself found in one of these ways: its stub has a handler that exchanges its results.
//
// One name can stand for several functions (versions, stream variants), so a stub belongs to a pair of name
// and real function. cuGetExportTable, which leads to private tables, is left alone.
//
// A program on a machine without driver must not find the symbols of the stubs by dlsym and think there is
// one.

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_abi.h"
#include "hook.h"

struct answer {
    void *value;
    uint64_t given; // else the stub of dlsym goes on to the real one
};

void *(*hook_real_dlsym)(void *, const char *);
static int (*real_dlclose)(void *);

struct answer hook_dlsym(void *handle, const char *name, void *caller);
uint64_t hook_resolve_slot(struct slot *slot); // gives whether the call has to be looked at anew
void hook_resolve(void);

// A sanitizer asks for symbols before it is ready for code of its own.
__attribute__((no_sanitize("address", "thread", "undefined"))) void hook_find_real(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"}; // in libc, in libdl before that
    for (int i = 0; i < 2 && !hook_real_dlsym; i++)
        hook_real_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (!hook_real_dlsym)
        abort(); // there is no way to go on, and no libc like that
    real_dlclose = (int (*)(void *))hook_real_dlsym(RTLD_NEXT, "dlclose");
}

// Slots of named functions are there before any code runs.

#define UNRESOLVED {.real = (void *)hook_resolve}
struct slot hook_slots[SLOTS] = {[0 ... HOOK_NAMES - 1] = UNRESOLVED};

// The driver's library

struct symbol {
    uintptr_t address;
    const char *name;
};

struct driver {
    uintptr_t start, end;         // what it occupies
    const struct symbol *symbols; // its functions by address
    size_t count;
};

static _Atomic(struct driver *) the_driver;

static int by_address(const void *a, const void *b) {
    const struct symbol *one = a, *two = b;
    if (one->address != two->address)
        return one->address < two->address ? -1 : 1;
    return strcmp(one->name, two->name);
}

static const void *dynamic_entry(const struct link_map *map, ElfW(Sxword) tag) {
    for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag) // some loaders leave addresses as they are in the file
            return (void *)(entry->d_un.d_ptr < map->l_addr ? entry->d_un.d_ptr + map->l_addr
                                                            : entry->d_un.d_ptr);
    return NULL;
}

static const char *soname(const struct link_map *map) {
    const char *strings = dynamic_entry(map, DT_STRTAB);
    for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_SONAME && strings)
            return strings + entry->d_un.d_val;
    return "";
}

static size_t count_symbols(const struct link_map *map) {
    const uint32_t *hash = dynamic_entry(map, DT_HASH);
    if (hash)
        return hash[1];
    hash = dynamic_entry(map, DT_GNU_HASH);
    if (!hash)
        return 0;
    const uint32_t *buckets = hash + 4 + 2 * hash[2], *chains = buckets + hash[0];
    uint32_t last = 0;
    for (uint32_t i = 0; i < hash[0]; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < hash[1])
        return 0;
    while (!(chains[last - hash[1]] & 1))
        last++;
    return last + 1;
}

// The end of what the library that begins at `start` occupies. dl_iterate_phdr would tell, with a lock that
// stays taken for ever in the child of a fork that another thread's call was in.
static uintptr_t find_end(const ElfW(Ehdr) * start, uintptr_t address) {
    const ElfW(Phdr) *segments = (const void *)((const char *)start + start->e_phoff);
    uintptr_t end = 0;
    for (int i = 0; i < start->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD && address + segments[i].p_vaddr + segments[i].p_memsz > end)
            end = address + segments[i].p_vaddr + segments[i].p_memsz;
    return end;
}

static void *pages(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

// The driver, if the address lies in it.
static struct driver *driver_of(void *address) {
    struct driver *driver = atomic_load(&the_driver);
    if (driver && (uintptr_t)address - driver->start < driver->end - driver->start)
        return driver;
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || !map ||
        strncmp(soname(map), "libcuda.so", 10))
        return NULL;

    const ElfW(Sym) *table = dynamic_entry(map, DT_SYMTAB);
    const char *strings = dynamic_entry(map, DT_STRTAB);
    size_t count = table && strings ? count_symbols(map) : 0;
    driver = pages(sizeof(*driver) + count * sizeof(struct symbol));
    if (!driver)
        return NULL;
    struct symbol *symbols = (struct symbol *)(driver + 1);
    driver->start = map->l_addr;
    driver->end = find_end(info.dli_fbase, map->l_addr);
    for (size_t i = 0; i < count; i++)
        if (ELF64_ST_TYPE(table[i].st_info) == STT_FUNC && table[i].st_shndx)
            symbols[driver->count++] =
                (struct symbol){map->l_addr + table[i].st_value, strings + table[i].st_name};
    qsort(symbols, driver->count, sizeof(*symbols), by_address);
    driver->symbols = symbols;
    atomic_store(&the_driver, driver); // one that it replaces stays, for somebody may be looking at it
    return driver;
}

// The exported name of a function, of several the first that is an entry point of the API.
static const char *symbol_at(const struct driver *driver, void *address) {
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

void *hook_driver_function(const char *symbol) {
    const struct driver *driver = atomic_load(&the_driver);
    for (size_t i = 0; driver && i < driver->count; i++)
        if (!strcmp(driver->symbols[i].name, symbol))
            return (void *)driver->symbols[i].address;
    return NULL;
}

bool hook_driver_is_simulated(void) { return hook_driver_function("gpt_sim_version"); }

// Stubs

#define STUB_SIZE 16
#define BUCKETS (4 * SLOTS)

static _Atomic uint16_t buckets[BUCKETS]; // slots that are not in names.h
static _Atomic uint32_t slots_used = HOOK_NAMES;
static _Atomic uint32_t name_bytes;
static char name_store[128 << 10];

static CUresult missing(void) { return CUDA_ERROR_STUB_LIBRARY; }

static void *stub_of(const struct slot *slot) {
    return (void *)(hook_stubs + STUB_SIZE * (slot - hook_slots));
}

static bool is_stub(const void *address) {
    return (const char *)address >= hook_stubs && (const char *)address < hook_stubs_end;
}

static const char *keep_name(const char *name) {
    uint32_t size = (uint32_t)strlen(name) + 1;
    uint32_t at = atomic_fetch_add(&name_bytes, size);
    return at + size <= sizeof(name_store) ? memcpy(name_store + at, name, size) : NULL;
}

// The slot of a function that has no place in names.h, or a place that another function of its name has.
static struct slot *find_slot(void *real, const char *symbol) {
    uint64_t hash = (uint64_t)real * 0x9e3779b97f4a7c15u;
    struct slot *made = NULL;
    for (unsigned at = hash >> 40, tries = 0; tries < BUCKETS; tries++, at++) {
        _Atomic uint16_t *bucket = &buckets[at % BUCKETS];
        uint16_t index = atomic_load(bucket);
        if (!index) {
            uint32_t number = made ? (uint32_t)(made - hook_slots) : atomic_fetch_add(&slots_used, 1);
            const char *kept = made ? made->symbol : keep_name(symbol);
            if (number >= SLOTS || !kept) {
                atomic_store(&slots_used, SLOTS);
                return NULL;
            }
            if (!made) {
                made = &hook_slots[number];
                made->real = real;
                hook_describe(made, kept);
            }
            if (atomic_compare_exchange_strong(bucket, &index, (uint16_t)number))
                return made;
        }
        if (hook_slots[index].real == real && !strcmp(hook_slots[index].symbol, symbol))
            return &hook_slots[index];
    }
    return NULL;
}

void *hook_wrap(void *real, const char *symbol) {
    if (!real || is_stub(real) || !strcmp(symbol, "cuGetExportTable"))
        return real;
    struct slot *slot = hook_named_slot(symbol);
    if (slot) {
        void *old = __atomic_load_n(&slot->real, __ATOMIC_ACQUIRE);
        if (old == (void *)hook_resolve || old == (void *)missing) {
            __atomic_store_n(&slot->real, real, __ATOMIC_RELEASE);
            old = real;
        }
        if (old == real)
            return stub_of(slot);
    }
    slot = find_slot(real, symbol);
    return slot ? stub_of(slot) : real;
}

void hook_on_get_proc_address(struct frame *frame) {
    const char *name = (const char *)frame->args[0];
    void **function = (void **)frame->args[1];
    if (!name || !function || !*function || !strcmp(name, "cuGetExportTable"))
        return;
    char symbol[NAME_BYTES];
    const char *exported = symbol_at(driver_of(*function), *function);
    snprintf(symbol, sizeof(symbol), "%s", exported ? exported : name);
    // A driver may hand out functions that it exports under no name.
    if (!exported && !strcmp(name, "cuGetProcAddress") && frame->args[2] >= 12000)
        strcat(symbol, "_v2");
    else if (!exported && strlen(name) < NAME_BYTES - 16) {
        if ((int)frame->args[2] >= 3020 && hook_is_old(name))
            strcat(symbol, "_v2");
        if (frame->args[3] & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
            strcat(symbol, "_ptsz");
    }
    *function = hook_wrap(*function, symbol);
}

uint64_t hook_resolve_slot(struct slot *slot) {
    int error = errno;
    bool early = hook_setup();
    void *real = hook_real_dlsym(RTLD_NEXT, slot->symbol);
    if (!real) { // the driver may be in the scope of one library only
        void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            real = hook_real_dlsym(handle, slot->symbol);
            real_dlclose(handle);
        }
    }
    if (real)
        driver_of(real);
    void *expected = (void *)hook_resolve;
    __atomic_compare_exchange_n(&slot->real, &expected, real ? real : (void *)missing, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    errno = error;
    return early;
}

// dlsym

// What RTLD_DEFAULT means to the caller, the stubs left out.
static void *find_default(const char *name, void *caller) {
    void *found = hook_real_dlsym(RTLD_DEFAULT, name); // where a program defines it itself
    if (found && is_stub(found))
        found = hook_real_dlsym(RTLD_NEXT, name);
    Dl_info info;
    struct link_map *map = NULL;
    if (!found && dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && *map->l_name) {
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = hook_real_dlsym(handle, name);
            real_dlclose(handle);
        }
    }
    return found ? found : hook_real_dlsym(RTLD_NEXT, name); // for the message that dlerror gives
}

// Nothing stands between the program and this library.
static bool is_program(void *address) {
    Dl_info info;
    struct link_map *map = NULL;
    return !dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || !map || !*map->l_name;
}

struct answer hook_dlsym(void *handle, const char *name, void *caller) {
    struct answer answer = {NULL, 0};
    hook_setup();
    // A library that asks for the next function stands between the program and the driver: the call was seen
    // before. Next to the program itself are the stubs; it gets what is next to those.
    if (handle == RTLD_NEXT && !is_program(caller))
        return answer;
    if ((handle == RTLD_NEXT || handle == RTLD_DEFAULT) && !hook_named_slot(name))
        return answer;
    answer.given = 1;
    answer.value = handle == RTLD_DEFAULT ? find_default(name, caller) : hook_real_dlsym(handle, name);
    if (is_stub(answer.value)) // in the scope of the program itself
        answer.value = hook_real_dlsym(RTLD_NEXT, name);
    if (answer.value) {
        int error = errno;
        if (driver_of(answer.value)) {
            answer.value = hook_wrap(answer.value, name);
            hook_this_thread(); // begins the trace
        }
        errno = error;
    }
    return answer;
}

// Where the driver was, another library may come to lie.
static void forget_driver(void) {
    struct driver *driver = atomic_load(&the_driver);
    Dl_info info;
    struct link_map *map = NULL;
    if (driver && (!dladdr1((void *)driver->start, &info, (void **)&map, RTLD_DL_LINKMAP) || !map ||
                   map->l_addr != driver->start || strncmp(soname(map), "libcuda.so", 10)))
        atomic_compare_exchange_strong(&the_driver, &driver, NULL);
}

// A library that goes is recorded first.
EXPORT int dlclose(void *handle) {
    if (!hook_real_dlsym)
        hook_find_real();
    if (hook_live && atomic_load_explicit(&hook_live->pid, memory_order_relaxed) && !hook_in_vfork) {
        int error = errno;
        hook_scan_libraries();
        errno = error;
    }
    int status = real_dlclose(handle);
    forget_driver();
    return status;
}

static int begin_if_linked(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!name || strncmp(name, "/libcuda.so", 11))
        return 0;
    driver_of((char *)info->dlpi_addr + info->dlpi_phdr[0].p_vaddr);
    return 1;
}

// The constructors of libraries that the program is linked to run before this one, and may use the driver:
// the first who comes sets everything up. Gives whether that was this call.
bool hook_setup(void) {
    static _Atomic bool begun;
    if (LIKELY(atomic_load_explicit(&begun, memory_order_relaxed)) || atomic_exchange(&begun, true))
        return false;
    int error = errno;
    hook_clock_setup();
    hook_trace_setup();
    hook_decode_setup();
    hook_ioctl_setup();
    hook_save_setup();
    if (!hook_real_dlsym)
        hook_find_real();
    if (dl_iterate_phdr(begin_if_linked, NULL))
        hook_this_thread();
    errno = error;
    return true;
}

__attribute__((constructor)) static void setup(void) { hook_setup(); }
