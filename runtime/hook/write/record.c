// Records, packed into the chunk of the thread.

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "chunk.h"
#include "write.h"

TLS bool hook_writing;

bool hook_open(struct gpt_packer *buffer, int try) {
    struct thread *thread = hook_this_thread();
    if (!thread)
        return false;
    if (try) {
        uint32_t size = try > 1 ? CHUNK_MAX : hook_chunk_after((uint32_t)thread->chunk.size);
        if (try > 1 && thread->chunk.size == CHUNK_MAX) // the record is larger than that
            return false;
        if (!hook_use_chunk(thread, hook_next_chunk(thread, size)))
            return false;
        *buffer = mapped_room(thread->chunk, 0);
        if (hook_has_tsc && gpt_pack_clock(buffer, &(struct gpt_clock){hook_monotonic(), hook_now()}))
            hook_close(buffer);
    }
    *buffer = mapped_room(thread->chunk, thread->used);
    return true;
}

bool hook_close(struct gpt_packer *buffer) {
    struct thread *thread = hook_thread;
    if (UNLIKELY(!thread)) // a child that was forked by a signal handler in between
        return false;
    thread->used = (uint32_t)(buffer->at - thread->chunk.start - CHUNK_HEAD);
    hook_set_used(thread->chunk.start, thread->used);
    atomic_fetch_add_explicit(&hook_live->tail->records, 1, memory_order_relaxed);
    return true;
}

unsigned char *hook_grow_rows(struct gpt_packer *buffer, unsigned char *start, size_t size) {
    struct gpt_packer head = {buffer->at - 2, buffer->end, false}; // the type of bytes, and 0
    gpt_put_head(&head, size, 0, 0, 0xc4, 0xc5);
    size_t pad = -(uintptr_t)head.at & 7;
    if (head.full || pad + size > (size_t)(head.end - head.at))
        return NULL;
    memmove(start + pad, start, (size_t)(head.at - start));
    memset(start, 0, pad); // between records
    buffer->at = head.at + pad + size;
    return head.at + pad;
}
