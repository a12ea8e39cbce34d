// malloc for device code. The heap of a context consists of pages. A page contains blocks of one size, a
// power of two, or a single larger block. From any address we can compute the page and the block, and check
// the access against the size that the kernel requested. There's a queue of freed blocks for each block size.
// A freed block is reused only when its queue holds 64 MiB; until then, an access to it is detected.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum {
    PAGE = 64 << 10,
    LEAST = 4,                // log2 of the smallest block
    MOST = 15,                // log2 of the largest block that shares a page
    SIZES = MOST - LEAST + 2, // the last is for blocks that fill a page
    WAITING = 64 << 20,
};

struct page {
    uint64_t start, size;
    uint64_t block;  // bytes of each
    size_t used;     // blocks allocated at least once
    uint64_t *sizes; // by block: twice the requested size, plus 1 if it is free
};

struct heap {
    uint64_t allocated; // bytes
    struct page *pages; // by start
    size_t count, room;
    uint64_t begun[SIZES]; // start of the page that new blocks come from
    struct queue {
        uint64_t *blocks; // a ring
        size_t first, count, room;
        uint64_t bytes;
    } freed[SIZES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // taken after sim_lock

#define HEAP_LOCKED __attribute__((cleanup(unlock), unused)) const int heap_locked_ = acquire()
static int acquire(void) {
    pthread_mutex_lock(&lock);
    return 0;
}
static void unlock(const int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}

// Pages

// Find the first page that begins above an address.
static size_t find_above(const struct heap *heap, uint64_t address) {
    size_t low = 0, high = heap->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (heap->pages[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct page *find(const struct heap *heap, uint64_t address) {
    size_t at = heap ? find_above(heap, address) : 0;
    struct page *page = at ? &heap->pages[at - 1] : NULL;
    return page && address - page->start < page->size ? page : NULL;
}

static struct page *add_page(struct heap *heap, uint64_t size, uint64_t block) {
    struct page *larger = sim_grow(heap->pages, heap->count, &heap->room, sizeof(*larger));
    if (larger)
        heap->pages = larger;
    uint64_t *sizes = calloc(size / block, sizeof(*sizes));
    void *start = larger && sizes ? aligned_alloc(PAGE, size) : NULL;
    if (!start) {
        free(sizes);
        return NULL;
    }
    size_t at = find_above(heap, (uint64_t)start);
    memmove(larger + at + 1, larger + at, (heap->count++ - at) * sizeof(*larger));
    larger[at] = (struct page){(uint64_t)start, size, block, 0, sizes};
    return &larger[at];
}

static void drop_page(struct heap *heap, struct page *page) {
    free((void *)page->start);
    free(page->sizes);
    memmove(page, page + 1, (size_t)(heap->pages + --heap->count - page) * sizeof(*page));
}

// Queues

static bool push(struct queue *queue, uint64_t block, uint64_t size) {
    if (queue->count == queue->room) {
        size_t room = queue->room ? 2 * queue->room : 64;
        uint64_t *larger = malloc(room * sizeof(*larger));
        if (!larger)
            return false;
        for (size_t i = 0; i < queue->count; i++)
            larger[i] = queue->blocks[(queue->first + i) % queue->room];
        free(queue->blocks);
        *queue = (struct queue){larger, 0, queue->count, room, queue->bytes};
    }
    queue->blocks[(queue->first + queue->count++) % queue->room] = block;
    queue->bytes += size;
    return true;
}

static uint64_t pop(struct queue *queue, uint64_t size) {
    uint64_t block = queue->blocks[queue->first];
    queue->first = (queue->first + 1) % queue->room;
    queue->count--;
    queue->bytes -= size;
    return block;
}

// Blocks

static unsigned order_of(uint64_t size) {
    unsigned order = size <= 1u << LEAST ? LEAST : 64 - (unsigned)__builtin_clzll(size - 1);
    return order > MOST ? SIZES - 1 : order - LEAST;
}

// Allocate a block: a new one, or the oldest of the freed ones. Returns 0 if memory runs out.
static uint64_t allocate_block(struct heap *heap, unsigned order) {
    struct queue *queue = &heap->freed[order];
    uint64_t block = (uint64_t)1 << (order + LEAST);
    if (queue->bytes >= WAITING)
        return pop(queue, block);
    struct page *page = find(heap, heap->begun[order]);
    if ((!page || page->used == page->size / page->block) && (page = add_page(heap, PAGE, block)))
        heap->begun[order] = page->start;
    if (page)
        return page->start + page->used++ * block;
    return queue->count ? pop(queue, block) : 0;
}

static uint64_t allocate_pages(struct heap *heap, uint64_t size) {
    uint64_t whole = (size + PAGE - 1) / PAGE * PAGE;
    struct page *page = add_page(heap, whole, whole);
    if (page)
        page->used = 1;
    return page ? page->start : 0;
}

uint64_t sim_heap_take(struct context *context, uint64_t size) {
    HEAP_LOCKED;
    struct heap *heap = context->heap ? context->heap : calloc(1, sizeof(*heap));
    context->heap = heap;
    uint64_t most = sim_limit(context, CU_LIMIT_MALLOC_HEAP_SIZE);
    if (!heap || !size || size > most || heap->allocated > most - size)
        return 0;
    unsigned order = order_of(size);
    uint64_t block = order < SIZES - 1 ? allocate_block(heap, order) : allocate_pages(heap, size);
    if (!block)
        return 0;
    const struct page *page = find(heap, block);
    page->sizes[(block - page->start) / page->block] = 2 * size;
    heap->allocated += size;
    return block;
}

// Find the size of the block that contains an address, or NULL.
static uint64_t *size_at(const struct heap *heap, uint64_t address, uint64_t *start) {
    const struct page *page = find(heap, address);
    if (!page)
        return NULL;
    uint64_t number = (address - page->start) / page->block;
    *start = page->start + number * page->block;
    return &page->sizes[number];
}

bool sim_heap_give(struct context *context, uint64_t address) {
    HEAP_LOCKED;
    struct heap *heap = context->heap;
    uint64_t start = 0, *size = size_at(heap, address, &start);
    if (!size || start != address || !*size || *size & 1)
        return false;
    heap->allocated -= *size / 2;
    unsigned order = order_of(*size / 2);
    struct page *page = find(heap, address);
    *size |= 1;
    struct queue *queue = &heap->freed[order];
    if (!push(queue, address, page->block))
        return true; // its memory stays
    while (order == SIZES - 1 && queue->bytes > WAITING && queue->count > 1) {
        page = find(heap, queue->blocks[queue->first]);
        pop(queue, page->block);
        drop_page(heap, page);
    }
    return true;
}

bool sim_heap_has(const struct context *context, uint64_t address, uint64_t size) {
    HEAP_LOCKED;
    uint64_t start = 0, *found = size_at(context->heap, address, &start);
    uint64_t room = found && !(*found & 1) ? *found / 2 : 0;
    return address - start <= room && size <= room - (address - start);
}

bool sim_heap_describe(const struct context *context, uint64_t address, char text[256]) {
    HEAP_LOCKED;
    uint64_t start = 0, *found = size_at(context->heap, address, &start);
    if (!found || !*found)
        return false;
    uint64_t size = *found / 2, at = address - start;
    if (*found & 1)
        snprintf(text, 256, ", %llu bytes into a block of %llu bytes of malloc that was freed",
                 (unsigned long long)at, (unsigned long long)size);
    else
        snprintf(text, 256, ", %llu bytes after a block of %llu bytes of malloc",
                 (unsigned long long)(at - size), (unsigned long long)size);
    return true;
}

void sim_end_heap(struct context *context) {
    struct heap *heap = context->heap;
    if (!heap)
        return;
    for (size_t i = 0; i < heap->count; i++) {
        free((void *)heap->pages[i].start);
        free(heap->pages[i].sizes);
    }
    for (size_t i = 0; i < SIZES; i++)
        free(heap->freed[i].blocks);
    free(heap->pages);
    free(heap);
    context->heap = NULL;
}
