// Preloaded: makes one allocation fail, number STARVE_NUMBER of those made by a library named like
// STARVE_LIBRARY. With STARVE_SAY, it prints the number of allocations at the end.

#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static uintptr_t start, end; // where the library is mapped
static unsigned long wanted, count;
static __thread bool busy;

static int see(struct dl_phdr_info *library, size_t size, void *name) {
    for (int i = 0; strstr(library->dlpi_name, name) && i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[i];
        uintptr_t from = library->dlpi_addr + segment->p_vaddr, to = from + segment->p_memsz;
        if (segment->p_type != PT_LOAD)
            continue;
        start = !start || from < start ? from : start;
        end = to > end ? to : end;
    }
    return 0;
}

static bool fails(void *from) {
    const char *number = getenv("STARVE_NUMBER");
    if (busy || !number)
        return false;
    busy = true;
    if (!end)
        dl_iterate_phdr(see, getenv("STARVE_LIBRARY"));
    busy = false;
    bool counts = (uintptr_t)from >= start && (uintptr_t)from < end;
    if (!counts || __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) != strtoul(number, NULL, 10))
        return false;
    errno = ENOMEM;
    return true;
}

#define FAILS fails(__builtin_return_address(0))

void *malloc(size_t size) { return FAILS ? NULL : __libc_malloc(size); }
void *calloc(size_t items, size_t size) { return FAILS ? NULL : __libc_calloc(items, size); }
void *realloc(void *old, size_t size) { return FAILS ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t align, size_t size) { return FAILS ? NULL : __libc_memalign(align, size); }

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    return FAILS ? MAP_FAILED : (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}

char *strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = FAILS ? NULL : __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

__attribute__((destructor)) static void tell(void) {
    if (getenv("STARVE_SAY"))
        fprintf(stderr, "allocations: %lu\n", count);
}
