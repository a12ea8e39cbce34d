// Images that the program loaded, for requests to the pipeline. An image in memory is copied, since the
// program may free or overwrite it after loading; a large one goes into an in-memory file. An image in a file
// that the program mapped, such as a library's, stays there, and requests name the file as long as it's
// unchanged.
//
// The hook never looks into an image: the pipeline decides. Most images in a stock PyTorch program contain
// nothing for probes. The pipeline's first answer about such an image says so for all of its kernels. The
// hook keeps that answer here and in the cache, so the next look-up needs no request.

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "common/control.h"
#include "hook/watch/watch.h"
#include "probe.h"

enum { MOST_IMAGE = 1 << 30, LARGE_IMAGE = 1 << 20, EDGE = 256 }; // bytes; EDGE: bytes compared at both ends

struct loaded {
    struct loaded *next;
    uint64_t handle;
    struct reference reference;
    const struct reason *refused; // why the pipeline isn't asked about it; NULL if it may be
    char answer[65];              // key of the last answer about the whole image; empty: none was looked for
    const struct reason *whole;   // the answer: why none of its kernels gets probes, or NULL
    bool linked;                  // the driver linked it from several PTX modules
    struct image image;           // starts at the copy, if there is one
    void *copy;
    size_t copy_size;
    int memory; // the file that `copy` maps, or -1
    ino_t inode;
    char *path;         // the file that contains it; NULL if there's none, or if it was copied
    struct stat status; // the file's status at the time of loading
    uint64_t offset;    // in it
    char digest[65];    // empty until needed, which few images are
};

static pthread_mutex_t sources_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *sources;

// Keeping the image

// Copy the image to private memory, or if it's large, to an unnamed file. Returns NULL, or the reason if that
// failed.
static const struct reason *copy_image(struct loaded *loaded) {
    const void *start = loaded->image.start;
    size_t size = loaded->image.size;
    struct stat status;
    loaded->memory = -1;
    if (!size || size > MOST_IMAGE)
        return size ? WHY_DETAIL(image_too_large, "it's larger than 1 GiB") : WHY(image_unreadable);
    const struct reason *reason = NULL;
    if (size > LARGE_IMAGE && (loaded->memory = gpt_make_file(start, size)) >= 0) {
        loaded->inode = fstat(loaded->memory, &status) ? 0 : status.st_ino;
        loaded->copy = mmap(NULL, size, PROT_READ, MAP_SHARED, loaded->memory, 0);
    } else {
        loaded->copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (loaded->copy != MAP_FAILED && hook_is_readable(start, size))
            memcpy(loaded->copy, start, size);
        else if (loaded->copy != MAP_FAILED) {
            munmap(loaded->copy, size);
            loaded->copy = MAP_FAILED;
            reason = WHY(image_unreadable);
        }
    }
    bool good = loaded->copy != MAP_FAILED;
    if (!good && loaded->memory >= 0) {
        close(loaded->memory);
        loaded->memory = -1;
    }
    loaded->copy = good ? loaded->copy : NULL;
    loaded->image.start = loaded->copy;
    loaded->copy_size = size;
    return good ? NULL : reason ? reason : WHY(no_memory);
}

static bool is_same(const struct stat *one, const struct stat *other) {
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

// Open a regular file, with a descriptor above the program's own. Returns -1 if it isn't a regular file.
static int open_file(const char *path, struct stat *status) {
    int file = gpt_set_aside(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file >= 0 && !fstat(file, status) && S_ISREG(status->st_mode))
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

// Return whether the file still contains the image at that offset, judging by its first and last bytes,
// because the file may have been replaced after it was mapped.
static bool is_there(int file, uint64_t offset, const struct image *image) {
    char here[EDGE], there[EDGE];
    size_t size = image->size < EDGE ? image->size : EDGE;
    const uint64_t places[] = {0, image->size - size};
    for (size_t i = 0; i < 2; i++)
        if (!hook_peek((const char *)image->start + places[i], here, size) ||
            pread(file, there, size, (off_t)(offset + places[i])) != (ssize_t)size ||
            memcmp(here, there, size))
            return false;
    return true;
}

// Return whether the image is still mapped from the file that contained it, even if that no longer has a
// name.
static bool is_still_mapped(const struct loaded *loaded) {
    uint64_t start = (uint64_t)loaded->image.start, end = start + loaded->image.size;
    size_t length = strlen(loaded->path);
    struct maps *maps = hook_open_maps();
    bool found = false;
    for (struct mapping mapping; !found && hook_next_mapping(maps, &mapping);)
        found = start >= mapping.start && end <= mapping.end &&
                start - mapping.start + mapping.offset == loaded->offset &&
                !strncmp(mapping.path, loaded->path, length) && !strcmp(mapping.path + length, " (deleted)");
    hook_close_maps(maps);
    return found;
}

// If the image will still be available later, only remember where it is.
static bool keep_place(struct loaded *loaded, const char *path, uint64_t offset) {
    if (!path)
        return false;
    int file = open_file(path, &loaded->status);
    bool good = file >= 0 && is_there(file, offset, &loaded->image) && (loaded->path = realpath(path, NULL));
    loaded->offset = offset;
    if (file >= 0)
        close(file);
    return good;
}

static void drop_copy(struct loaded *loaded) {
    struct stat status;
    if (loaded->copy)
        munmap(loaded->copy, loaded->copy_size);
    if (loaded->memory >= 0 && !fstat(loaded->memory, &status) && status.st_ino == loaded->inode)
        close(loaded->memory);
    loaded->copy = NULL, loaded->memory = -1;
}

// Add an image. Entries for images that no longer exist are removed.
static void add(struct loaded *added) {
    pthread_mutex_lock(&sources_lock);
    for (struct loaded **at = &sources, *loaded; (loaded = *at);)
        if (hook_is_alive(loaded->reference))
            at = &loaded->next;
        else {
            *at = loaded->next;
            drop_copy(loaded);
            free(loaded->path);
            free(loaded);
        }
    added->next = sources;
    sources = added;
    pthread_mutex_unlock(&sources_lock);
}

static struct loaded *new_loaded(const struct frame *frame) {
    const uint64_t *handle = (const uint64_t *)frame_arg(frame, 0);
    struct loaded *loaded = handle ? calloc(1, sizeof(*loaded)) : NULL;
    hook_probe_begin();
    if (loaded) {
        loaded->handle = *handle;
        loaded->reference = hook_object_find(*handle);
        loaded->memory = -1;
    }
    return loaded;
}

bool hook_keep_loaded_image(struct frame *frame) {
    const void *given = (const void *)frame_arg(frame, 1);
    struct loaded *loaded =
        (CUresult)frame->result == CUDA_SUCCESS && given && hook_probing ? new_loaded(frame) : NULL;
    if (!loaded)
        return false;
    char buffer[4096];
    uint64_t offset;
    struct gpt_bytes text = {0};
    loaded->image = hook_read_image(given);
    loaded->linked = hook_find_linked(&loaded->image, &text) && !text.size;
    const char *file = hook_find_file(loaded->image.start, &offset, buffer, sizeof(buffer));
    const char *owner = file ? file : hook_find_library((const void *)frame_caller(frame));
    if (text.size) {
        loaded->image = (struct image){"ptx", text.data, text.size};
        file = NULL;
    }
    if (hook_is_closed(owner))
        loaded->refused = WHY(closed_library);
    else if (!keep_place(loaded, file, offset))
        loaded->refused = copy_image(loaded);
    gpt_empty(&text);
    add(loaded);
    return true;
}

// Find the image in the file as if it were mapped, since the driver has loaded it.
static const struct reason *read_file(struct loaded *loaded, const char *path) {
    struct stat status;
    int file = open_file(path, &status);
    if (file < 0 || status.st_size <= 0)
        return WHY_DETAIL(image_unreadable, "its file can't be opened or mapped");
    size_t size = (size_t)status.st_size; // and one more byte, to terminate a text
    char *start = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start != MAP_FAILED && mmap(start, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED) {
        munmap(start, size + 1);
        start = MAP_FAILED;
    }
    close(file);
    if (start == MAP_FAILED)
        return WHY_DETAIL(image_unreadable, "its file can't be opened or mapped");
    uint32_t magic = 0;
    hook_peek(start, &magic, sizeof(magic));
    bool binary = magic == FATBIN_MAGIC || !memcmp(&magic, ELFMAG, SELFMAG);
    loaded->image = binary ? hook_read_image(start) : (struct image){"ptx", start, size};
    const struct reason *refused = NULL;
    if (loaded->image.size > size)
        refused = WHY_DETAIL(image_unreadable, "its file is not whole");
    else if (loaded->image.size <= LARGE_IMAGE || !keep_place(loaded, path, 0)) // a small file may go soon
        refused = copy_image(loaded);
    munmap(start, size + 1);
    return refused;
}

bool hook_keep_loaded_file(struct frame *frame) {
    const char *path = (const char *)frame_arg(frame, 1);
    struct loaded *loaded =
        (CUresult)frame->result == CUDA_SUCCESS && path && hook_probing ? new_loaded(frame) : NULL;
    if (!loaded)
        return false;
    loaded->refused = hook_is_closed(path) ? WHY(closed_library) : read_file(loaded, path);
    add(loaded);
    return true;
}

// Questions

// Return the image from which a function or kernel was loaded, or NULL. Must be called with the lock held.
static struct loaded *find_source(uint64_t function) {
    struct object_view view;
    for (uint64_t handle = function; handle && hook_object_look(handle, &view); handle = view.parent)
        for (struct loaded *loaded = sources; loaded; loaded = loaded->next)
            if (loaded->handle == handle && hook_is_alive(loaded->reference))
                return loaded;
    return NULL;
}

static void digest(struct loaded *loaded) {
    char text[4096 + 256];
    if (!loaded->path) {
        gpt_sha256(loaded->image.start, loaded->image.size, loaded->digest);
        return;
    }
    const struct stat *status = &loaded->status;
    int size = snprintf(text, sizeof(text), "%lu %ld %ld.%09ld %lu %lu %s", status->st_ino, status->st_size,
                        status->st_mtim.tv_sec, status->st_mtim.tv_nsec, loaded->offset, loaded->image.size,
                        loaded->path);
    gpt_sha256(text, (size_t)size < sizeof(text) ? (size_t)size : sizeof(text) - 1, loaded->digest);
}

const struct reason *hook_digest_source(uint64_t function, char to[65]) {
    pthread_mutex_lock(&sources_lock);
    struct loaded *loaded = find_source(function);
    const struct reason *refused = loaded ? loaded->refused : WHY(unknown_source);
    if (!refused && !*loaded->digest)
        digest(loaded);
    if (!refused)
        memcpy(to, loaded->digest, sizeof(loaded->digest));
    pthread_mutex_unlock(&sources_lock);
    return refused;
}

bool hook_find_refusal(uint64_t function, const char key[65], const struct reason **reason) {
    pthread_mutex_lock(&sources_lock);
    const struct loaded *loaded = find_source(function);
    bool known = loaded && !strcmp(loaded->answer, key);
    *reason = known ? loaded->whole : NULL;
    pthread_mutex_unlock(&sources_lock);
    return known;
}

const struct reason *hook_refuse_image(uint64_t function, const char key[65], const struct reason *reason) {
    pthread_mutex_lock(&sources_lock);
    struct loaded *loaded = find_source(function);
    bool no_ptx = reason && !strcmp(reason->code, WHY(no_ptx)->code);
    if (no_ptx && loaded && loaded->linked)
        reason = WHY(linked);
    bool known = loaded && !strcmp(loaded->answer, key); // another thread was faster
    if (known && !reason)
        reason = loaded->whole;
    if (loaded) {
        strcpy(loaded->answer, key);
        loaded->whole = reason;
    }
    if (loaded && no_ptx && !getenv(GPT_CONTROL)) { // no other question will be asked
        loaded->refused = reason;
        drop_copy(loaded);
    }
    pthread_mutex_unlock(&sources_lock);
    return reason;
}

// Return the file with a large image. Programs close descriptors that they didn't open, so it may have to be
// created again.
static int open_memory(struct loaded *loaded) {
    struct stat status;
    if (fstat(loaded->memory, &status) || status.st_ino != loaded->inode) {
        loaded->memory = gpt_make_file(loaded->image.start, loaded->image.size);
        loaded->inode = loaded->memory < 0 || fstat(loaded->memory, &status) ? 0 : status.st_ino;
    }
    return fcntl(loaded->memory, F_DUPFD_CLOEXEC, loaded->memory);
}

static const struct reason *add_request(struct loaded *loaded, struct gpt_asked *asked,
                                        struct gpt_bytes *request, int *file) {
    struct stat status;
    asked->type = loaded->image.type;
    asked->size = loaded->image.size;
    asked->offset = loaded->offset;
    if (loaded->path) {
        *file = open_file(loaded->path, &status);
        if (*file < 0 || !is_same(&status, &loaded->status)) {
            gpt_close((int[]){*file, -1});
            *file = -1;
            if (asked->size > LARGE_IMAGE || !is_still_mapped(loaded))
                return WHY(file_changed);
        }
    } else if (loaded->memory >= 0)
        *file = open_memory(loaded);
    if (*file < 0)
        asked->image = loaded->image.start;
    return asked->image && asked->size > GPT_MOST - LARGE_IMAGE
               ? WHY_DETAIL(image_too_large, "it's in no file and larger than 63 MiB")
           : gpt_add_module(request, asked) ? NULL
                                            : WHY(no_memory);
}

const struct reason *hook_add_request(uint64_t function, struct gpt_asked *asked, struct gpt_bytes *request,
                                      int *file) {
    struct object_view view;
    *file = -1;
    asked->module = hook_object_look(function, &view) ? view.module : 0;
    pthread_mutex_lock(&sources_lock);
    struct loaded *loaded = find_source(function);
    const struct reason *refused = !loaded           ? WHY(unknown_source)
                                   : loaded->refused ? loaded->refused
                                                     : add_request(loaded, asked, request, file);
    pthread_mutex_unlock(&sources_lock);
    return refused;
}

// -- Linked PTX ------------------------------------------------------------
//
// The driver's linker output contains no PTX, so we keep the PTX of its inputs: for links in progress, and
// for some results. We recognize a result by its contents, because programs copy it.
//
// Only code linked from a single PTX module is probed. With several, one may replace weak functions of
// another, or two may have variables of the same name, and only the linker knows which one a kernel uses. A
// static library such as CUDA's device runtime does neither; the pipeline leaves out kernels that call it.

enum { MOST_RESULTS = 64, MOST_TEXT = 64 << 20 }; // results; bytes of a part

struct link {
    struct link *next;
    uint64_t state; // 0: a result
    struct gpt_bytes text;
    unsigned parts; // but libraries
    uint64_t size;  // bytes in the result
    char digest[65];
};

static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;

static void drop(struct link **at) {
    struct link *gone = *at;
    *at = gone->next;
    gpt_empty(&gone->text);
    free(gone);
}

// Return a link in progress. Must be called with the lock held.
static struct link **find_link(uint64_t state) {
    struct link **at = &links;
    while (*at && (*at)->state != state)
        at = &(*at)->next;
    return at;
}

static bool is_done(const struct frame *frame) {
    return hook_probing && (CUresult)frame->result == CUDA_SUCCESS && frame_arg(frame, 0);
}

// cuLinkCreate, whose state is its last argument.
void hook_after_link_begun(struct frame *frame) {
    const uint64_t *state = (const uint64_t *)frame_arg(frame, 3);
    struct link *link =
        hook_probing && (CUresult)frame->result == CUDA_SUCCESS && state ? calloc(1, sizeof(*link)) : NULL;
    if (!link)
        return;
    pthread_mutex_lock(&links_lock);
    struct link **old = find_link(*state);
    if (*old)
        drop(old);
    link->state = *state;
    link->next = links;
    links = link;
    pthread_mutex_unlock(&links_lock);
}

static void add_part(uint64_t state, int type, const void *data, size_t size) {
    if (type == CU_JIT_INPUT_LIBRARY)
        return;
    pthread_mutex_lock(&links_lock);
    struct link *link = *find_link(state);
    if (link && ++link->parts == 1 && type == CU_JIT_INPUT_PTX && size <= MOST_TEXT &&
        hook_is_readable(data, size))
        gpt_add(&link->text, data, size);
    else if (link)
        gpt_empty(&link->text);
    pthread_mutex_unlock(&links_lock);
}

// cuLinkAddData
void hook_after_link_data(struct frame *frame) {
    if (is_done(frame))
        add_part(frame_arg(frame, 0), (int)frame_arg(frame, 1), (const void *)frame_arg(frame, 2),
                 frame_arg(frame, 3));
}

// cuLinkAddFile
void hook_after_link_file(struct frame *frame) {
    const char *path = (const char *)frame_arg(frame, 2);
    struct gpt_bytes text = {0};
    struct stat status;
    if (!is_done(frame) || !path)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool small = file >= 0 && !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size <= MOST_TEXT;
    bool whole = small && gpt_read_file(file, &text);
    add_part(frame_arg(frame, 0), whole ? (int)frame_arg(frame, 1) : -1, text.data, text.size);
    gpt_empty(&text);
    if (file >= 0)
        close(file);
}

// If there are too many results, drop the oldest, which are last in the list.
static void shrink(void) {
    unsigned count = 0;
    for (struct link **at = &links; *at;)
        if (!(*at)->state && ++count > MOST_RESULTS)
            drop(at);
        else
            at = &(*at)->next;
}

// cuLinkComplete
void hook_after_link(struct frame *frame) {
    void *const *result = (void *const *)frame_arg(frame, 1);
    if (!is_done(frame) || !result || !*result)
        return;
    struct image image = hook_read_image(*result);
    struct link *made = hook_is_readable(image.start, image.size) ? calloc(1, sizeof(*made)) : NULL;
    if (!made)
        return;
    made->size = image.size;
    gpt_sha256(image.start, image.size, made->digest);
    pthread_mutex_lock(&links_lock);
    const struct link *link = *find_link(frame_arg(frame, 0));
    if (link && link->text.size)
        gpt_add(&made->text, link->text.data, link->text.size);
    made->next = links;
    links = made;
    shrink();
    pthread_mutex_unlock(&links_lock);
}

// cuLinkDestroy
void hook_after_link_end(struct frame *frame) {
    pthread_mutex_lock(&links_lock);
    struct link **at = find_link(frame_arg(frame, 0));
    if (frame_arg(frame, 0) && (CUresult)frame->result == CUDA_SUCCESS && *at)
        drop(at);
    pthread_mutex_unlock(&links_lock);
}

bool hook_find_linked(const struct image *image, struct gpt_bytes *text) {
    char digest[65] = "";
    pthread_mutex_lock(&links_lock);
    const struct link *link = links;
    for (; link; link = link->next) {
        if (link->state || link->size != image->size)
            continue;
        if (!*digest && hook_is_readable(image->start, image->size))
            gpt_sha256(image->start, image->size, digest);
        if (!strcmp(digest, link->digest))
            break;
    }
    if (link && link->text.size)
        gpt_add(text, link->text.data, link->text.size);
    pthread_mutex_unlock(&links_lock);
    return link != NULL;
}
