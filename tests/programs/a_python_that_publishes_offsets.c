// Memory that looks like CPython's, with one thread and one frame: what a later version publishes about its
// structures. The arguments are the version as hexadecimal number, and 1 for a free-threaded build.

#include "client.h"
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

struct object {
    uint64_t count;
    void *type;
};
struct text {
    struct object object;
    int64_t length, hash;
    uint32_t state, pad[1];
    char data[32];
} __attribute__((packed));
struct bytes {
    struct object object;
    int64_t size, hash;
    unsigned char data[32];
};
struct code {
    struct object object;
    uint64_t pad;
    void *lines, *name, *file;
    int first_line, more;
    unsigned char bytecode[16];
};
struct frame {
    uint64_t pad;
    unsigned char *instruction;
    struct frame *previous;
    uintptr_t code;
    char owner;
};
struct state {
    uint64_t pad;
    struct state *next;
    struct frame *frame;
    uint64_t tid;
};
struct interpreter {
    uint64_t pad[3];
    struct interpreter *next;
    struct state *threads;
};

struct object PyCode_Type;
struct {
    uint64_t words[256];
    struct interpreter *interpreters;
} _PyRuntime;

static struct text file = {.state = 1 << 2 | 1 << 5 | 1 << 6, .length = 6, .data = "abc.py"};
static struct text name = {.state = 1 << 2 | 1 << 5 | 1 << 6, .length = 3, .data = "run"};
// Two code units of the first line, two of the line after the next one.
static struct bytes lines = {.size = 6, .data = {0x80 | 11 << 3 | 1, 0, 0, 0x80 | 12 << 3 | 1, 0, 0}};
static struct code code = {
    .object.type = &PyCode_Type, .lines = &lines, .name = &name, .file = &file, .first_line = 10};

int main(int argc, char **argv) {
    unsigned long version = strtoul(argv[1], NULL, 16);
    size_t thread = version >= 0x030e0000 ? 22 : 19, frame = thread + 9,
           length = version >= 0x030e0000 ? 8 : 6;
    uint64_t *words = _PyRuntime.words;
    struct frame shim = {.owner = 3}, first = {.previous = &shim, .code = (uintptr_t)&code | 1};
    struct state state = {.frame = &first, .tid = (uint64_t)syscall(SYS_gettid)};
    struct interpreter interpreter = {.threads = &state};
    first.instruction = code.bytecode + 2 * 2;
    memcpy(words, "xdebugpy", 8);
    words[1] = version, words[2] = argc > 2;
    words[5] = offsetof(typeof(_PyRuntime), interpreters);
    words[8] = offsetof(struct interpreter, next), words[9] = offsetof(struct interpreter, threads);
    words[thread + 2] = offsetof(struct state, next), words[thread + 4] = offsetof(struct state, frame);
    words[thread + 6] = offsetof(struct state, tid);
    words[frame + 1] = offsetof(struct frame, previous), words[frame + 2] = offsetof(struct frame, code);
    words[frame + 3] = offsetof(struct frame, instruction), words[frame + 5] = offsetof(struct frame, owner);
    words += frame + length;
    words[1] = offsetof(struct code, file), words[3] = offsetof(struct code, name);
    words[4] = offsetof(struct code, lines), words[5] = offsetof(struct code, first_line);
    words[9] = offsetof(struct code, bytecode);
    _PyRuntime.interpreters = &interpreter;
    begin();
    nanosleep(&(struct timespec){0, 400000000}, NULL);
    return 0;
}
