// What was loaded. Of an image with PTX in it there is a copy, for the program may give it back, or write
// over it, once it is loaded. A large one in the mapping of a file stays where it is.

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/kept.h"
#include "cuda_abi.h"
#include "hook/watch/libs.h"
#include "hook/watch/objects.h"
#include "hook/watch/peek.h"
#include "lookup.h"
#include "settings.h"
#include "sources.h"

enum { MOST_IMAGE = 1 << 30, LARGE_IMAGE = 8 << 20 };

struct loaded {
    struct loaded *next;
    uint64_t handle;
    struct reference reference;
    struct source source;
    void *copy;
    size_t copy_size;
};

static const char CLOSED[] = "it is a library of NVIDIA's whose code is closed",
                  NO_PTX[] = "no PTX comes with it";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *all;

// Whether a module has PTX. The driver has read the image, but its headers may claim more than is there.

static bool fatbin_has_ptx(const struct image *image) {
    struct fatbin_region region;
    struct fatbin_element element;
    const char *at = image->start;
    if (!hook_peek(at, &region, sizeof(region)))
        return false;
    const char *end = at + image->size;
    for (at += region.header_size; (size_t)(end - at) >= sizeof(element) && at < end;) {
        if (!hook_peek(at, &element, sizeof(element)))
            return false;
        if (element.kind == FATBIN_PTX)
            return true;
        uint64_t size = element.header_size + element.payload_size;
        if (element.header_size < sizeof(element) || size > (uint64_t)(end - at))
            return false;
        at += size;
    }
    return false;
}

static bool cubin_has_ptx(const struct image *image) {
    static const char wanted[] = ".nv_debug_ptx_txt";
    const char *start = image->start;
    Elf64_Ehdr head;
    Elf64_Shdr section, names;
    char name[sizeof(wanted)];
    if (!hook_peek(start, &head, sizeof(head)) || head.e_shentsize != sizeof(section) ||
        !hook_peek(start + head.e_shoff + head.e_shstrndx * sizeof(names), &names, sizeof(names)))
        return false;
    for (unsigned i = 0; i < head.e_shnum; i++)
        if (hook_peek(start + head.e_shoff + i * sizeof(section), &section, sizeof(section)) &&
            hook_peek(start + names.sh_offset + section.sh_name, name, sizeof(name)) &&
            !memcmp(name, wanted, sizeof(wanted)))
            return true;
    return false;
}

static bool has_ptx(const struct image *image) {
    return *image->type == 'p' || (*image->type == 'f' ? fatbin_has_ptx(image) : cubin_has_ptx(image));
}

// When it is first asked for: few images are.
static void digest(struct source *source) {
    if (!hook_is_readable(source->image.start, source->image.size))
        source->refused = "its image cannot be read any more";
    else
        gpt_sha256(source->image.start, source->image.size, source->digest);
}

// What is gone is forgotten when something comes.
static void add(struct loaded *added) {
    pthread_mutex_lock(&lock);
    for (struct loaded **at = &all, *loaded; (loaded = *at);)
        if (hook_is_alive(loaded->reference))
            at = &loaded->next;
        else {
            *at = loaded->next;
            if (loaded->copy)
                munmap(loaded->copy, loaded->copy_size);
            free(loaded);
        }
    added->next = all;
    all = added;
    pthread_mutex_unlock(&lock);
}

static struct loaded *new_loaded(const struct frame *frame) {
    const uint64_t *handle = (const uint64_t *)frame->args[0];
    struct loaded *loaded = handle ? calloc(1, sizeof(*loaded)) : NULL;
    hook_probe_begin();
    if (loaded) {
        loaded->handle = *handle;
        loaded->reference = hook_object_find(*handle);
    }
    return loaded;
}

static void *copy_image(const void *start, size_t size) {
    void *copy = size && size <= MOST_IMAGE
                     ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : MAP_FAILED;
    if (copy == MAP_FAILED)
        return NULL;
    if (hook_is_readable(start, size))
        memcpy(copy, start, size);
    else {
        munmap(copy, size);
        copy = NULL;
    }
    return copy;
}

void hook_after_load_image(struct frame *frame) {
    const void *given = (const void *)frame->args[1];
    struct loaded *loaded =
        (CUresult)frame->rax == CUDA_SUCCESS && given && hook_probing ? new_loaded(frame) : NULL;
    if (!loaded)
        return;
    char buffer[4096];
    uint64_t offset;
    struct source *source = &loaded->source;
    source->image = hook_read_image(given);
    const char *file = hook_find_file(source->image.start, &offset, buffer, sizeof(buffer));
    const char *owner = file ? file : hook_find_library((const void *)frame_caller(frame));
    bool stays = file && source->image.size > LARGE_IMAGE;
    if (hook_is_closed(owner))
        source->refused = CLOSED;
    else if (!has_ptx(&source->image))
        source->refused = NO_PTX;
    else if (!stays && (loaded->copy = copy_image(source->image.start, source->image.size)))
        source->image.start = loaded->copy, loaded->copy_size = source->image.size;
    else if (!stays)
        source->refused = "its image is too large to keep";
    add(loaded);
    hook_finish_lookups();
}

void hook_after_load_file(struct frame *frame) {
    const char *path = (const char *)frame->args[1];
    struct loaded *loaded =
        (CUresult)frame->rax == CUDA_SUCCESS && path && hook_probing ? new_loaded(frame) : NULL;
    struct stat status;
    if (!loaded)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size > 0 &&
        status.st_size <= MOST_IMAGE) {
        size_t size = (size_t)status.st_size; // and a byte behind it, which ends a text
        char *copy = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy != MAP_FAILED && pread(file, copy, size, 0) == (ssize_t)size) {
            loaded->source.image = hook_read_image(copy);
            loaded->copy = copy, loaded->copy_size = size + 1;
        } else if (copy != MAP_FAILED)
            munmap(copy, size + 1);
    }
    if (file >= 0)
        close(file);
    if (!loaded->copy)
        loaded->source.refused = "its file cannot be read";
    else if (hook_is_closed(path))
        loaded->source.refused = CLOSED;
    else if (!has_ptx(&loaded->source.image))
        loaded->source.refused = NO_PTX;
    add(loaded);
    hook_finish_lookups();
}

bool hook_find_source(uint64_t function, struct source *source) {
    struct object_view view;
    bool found = false;
    for (uint64_t handle = function; handle && !found && hook_object_look(handle, &view);
         handle = view.parent) {
        pthread_mutex_lock(&lock);
        for (struct loaded *loaded = all; loaded && !found; loaded = loaded->next)
            if (loaded->handle == handle && hook_is_alive(loaded->reference)) {
                if (!loaded->source.refused && !*loaded->source.digest)
                    digest(&loaded->source);
                *source = loaded->source;
                found = true;
            }
        pthread_mutex_unlock(&lock);
    }
    return found;
}
