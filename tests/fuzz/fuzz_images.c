// Fuzz modules.c, with which the hook reads images that a program passes to the driver. Whatever an image
// claims, reads must stay inside it.

#include "absent.h"
#include "common/sha256.c"
#include "hook/watch/driver.c"
#include "hook/watch/libraries.c"
#include "hook/watch/memory.c"
#include "hook/watch/modules.c"

#define ROOM (1u << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *room; // followed by an unreadable page
    if (!room) {
        room = mmap(NULL, ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED || mprotect(room + ROOM, 4096, PROT_NONE))
            abort();
    }
    if (!size || size > ROOM)
        return 0;
    uint8_t *start = room + ROOM - size; // no NUL ends it: an image may be something else than PTX
    memcpy(start, data, size);
    struct fatbin_wrapper wrapper;
    memcpy(&wrapper, start, size < sizeof(wrapper) ? size : sizeof(wrapper));
    if (size >= sizeof(wrapper) && wrapper.magic == FATBIN_WRAPPER_MAGIC)
        return 0; // the address belongs to the program
    struct image image = hook_read_image(start);
    char digest[65];
    if (hook_is_readable(image.start, image.size))
        gpt_sha256(image.start, image.size, digest);
    return 0;
}
