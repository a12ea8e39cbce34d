// The Python frames of a thread, read from outside while it runs (gpt-hook --sample-host, --stacks).
// CPython 3.11 to 3.14 keeps each thread's frames as a linked list. From 3.13 on, the interpreter publishes
// where its structures have what we need (_Py_DebugOffsets, at the start of _PyRuntime); for 3.11 and 3.12,
// which are frozen, the offsets are in a table here.
//
// The thread isn't stopped, so a frame may end while we read it, and another frame may reuse its memory. The
// kernel reads the memory for us, so a wrong pointer only makes a read fail. We walk the list until AGREE
// walks in a row agree. It wouldn't be enough to read the frames of one walk again, because the memory of a
// frame that has ended stays as it was. Two walks aren't enough, either: in a loop of short functions, some
// pairs agreed on a stack that never existed. If the walks never agree, we use the outer frames that were the
// same in the last two. We accept a code object only if its type is PyCode_Type.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "hook/write/write.h"
#include "watch.h"

// Limits, as a list that changes while we read it may never end.
enum { MOST_THREADS = 4096, MOST_INTERPRETERS = 64 };
enum { MOST_TEXT = 1024, MOST_LINES = 64 << 10, HEAD = 256 }; // bytes of a name, a line table, a code object
enum { CODES = 1 << 14, ARENA = 1 << 20, MOST_ARENAS = 64 };
enum { WALKS = 12, AGREE = 3 };
enum { DEEPEST = 128 };

struct python_frame {
    uint32_t code, line; // a number for its code object; 0: no line
    const char *file, *name;
};

// Where a version of CPython has its fields, in bytes.
struct python_layout {
    uint64_t interpreters, next_interpreter, threads; // in _PyRuntime; in an interpreter
    uint64_t next_thread, tid, frame;                 // in a thread
    uint64_t previous, code, instruction, owner;      // in a frame
    uint64_t file, name, lines, first_line, bytecode; // in a code object
    uint64_t text;                                    // size of PyASCIIObject
    bool indirect;  // the thread points to a structure that points to the frame
    uint64_t inner; // offset in that structure
};

static const struct python_layout LAYOUT_3_11 = {40, 0,   16,  8,   160, 56,  48, 32,   56,
                                                 69, 112, 128, 136, 72,  184, 48, true, 8};
static const struct python_layout LAYOUT_3_12 = {40, 0,   72,  8,   144, 56,  8,  0,    56,
                                                 70, 112, 128, 136, 68,  192, 40, true, 0};

enum { SHIM = 3 };                           // frames with this owner or a higher one aren't Python code
enum { LENGTH = 16, STATE = 32, UTF8 = 16 }; // in a str; bytes that a compact one has more than an ASCII one
enum { BYTES_SIZE = 16, BYTES = 32, TYPE = 8 }; // in a bytes object; in any object
enum { POINTER = ~7 };                          // 3.14 has tags in the lowest bits of references

// A code object that we've read. It may be gone, and another one may have its address, so we compare
// all fields of its key.
struct code {
    struct {
        uint64_t at, file, name, lines;
        uint32_t first_line;
    } key;
    uint32_t number, size; // size: of line_table
    const char *file, *name;
    const unsigned char *line_table;
};

static struct python {
    uintptr_t runtime, code_type;
    struct python_layout layout;
    uint32_t version; // 0x030d: 3.13
    uint32_t numbers; // codes numbered so far
    unsigned arenas;
    char *arena;
    size_t arena_left;
    struct code codes[CODES];
} *python;

static bool read_word(uint64_t at, uint64_t *word) {
    return hook_peek((const void *)at, word, sizeof(*word));
}

// Finding the interpreter

static bool find_published(const uint64_t *words, uint32_t version, struct python_layout *layout) {
    // The offsets of three sections: thread_state, interpreter_frame and code_object.
    size_t thread = version == 0x030d ? 19 : 22, frame = version == 0x030d ? 28 : 31, code = frame + 6;
    if (version == 0x030e)
        code += 2;
    *layout = (struct python_layout){
        .interpreters = words[5],
        .next_interpreter = words[8],
        .threads = words[9],
        .next_thread = words[thread + 2],
        .frame = words[thread + 4],
        .tid = words[thread + 6],
        .previous = words[frame + 1],
        .code = words[frame + 2],
        .instruction = words[frame + 3],
        .owner = words[frame + 5],
        .file = words[code + 1],
        .name = words[code + 3],
        .lines = words[code + 4],
        .first_line = words[code + 5],
        .bytecode = words[code + 9],
        .text = 40,
    };
    const uint64_t all[] = {layout->interpreters, layout->next_interpreter, layout->threads};
    for (size_t i = 0; i < 3; i++)
        if (all[i] > 1 << 20)
            return false;
    return words[thread + 2] < 4096 && words[thread + 4] < 4096 && words[thread + 6] < 4096 &&
           layout->previous < HEAD && layout->code < HEAD && layout->instruction < HEAD &&
           layout->owner < HEAD && layout->file < HEAD && layout->name < HEAD && layout->lines < HEAD &&
           layout->first_line < HEAD && layout->bytecode <= HEAD;
}

// Return why frames of this interpreter can't be read, or NULL.
static const char *read_layout(const struct linked *linked, struct python *into) {
    struct {
        char cookie[8];
        uint64_t version, free_threaded, words[64];
    } offsets;
    _Static_assert(sizeof(offsets.cookie) == 8, "the words are numbered from the cookie");
    if (hook_peek((const void *)into->runtime, &offsets, sizeof(offsets)) &&
        !memcmp(offsets.cookie, "xdebugpy", 8)) {
        into->version = (uint32_t)(offsets.version >> 16);
        if (offsets.free_threaded)
            return "a free-threaded Python: its frames aren't read";
        if (into->version != 0x030d && into->version != 0x030e)
            return "Python later than 3.14: its frames aren't read";
        return find_published((const uint64_t *)&offsets, into->version, &into->layout)
                   ? NULL
                   : "Python describes its frames in an unknown way: they aren't read";
    }
    uint64_t version = 0;
    void *at = hook_variable_in(linked, "Py_Version"); // since 3.11
    if (at)
        read_word((uint64_t)at, &version);
    into->version = (uint32_t)(version >> 16);
    if (into->version != 0x030b && into->version != 0x030c)
        return "Python before 3.11: its frames aren't read";
    into->layout = into->version == 0x030b ? LAYOUT_3_11 : LAYOUT_3_12;
    return NULL;
}

// One thread at a time reads frames, into static variables: the stack of a program's thread may be small.
// Signals are blocked meanwhile. In a forked child, nobody has the lock: hook_watched is zero again.
static void lock(void) { pthread_mutex_lock(&hook_watched->reading_python); }
static void unlock(void) { pthread_mutex_unlock(&hook_watched->reading_python); }

static bool find(const char *where) {
    static struct python found;
    static const char *reported;
    if (python)
        return true;
    struct linked linked = {0};
    void *runtime = NULL;
    while (!runtime && hook_next_linked(&linked))
        runtime = hook_variable_in(&linked, "_PyRuntime");
    if (!runtime)
        return false;
    found.runtime = (uintptr_t)runtime;
    found.code_type = (uintptr_t)hook_variable_in(&linked, "PyCode_Type");
    const char *why = read_layout(&linked, &found);
    if (why && why != reported)
        HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = hook_str(where), .text = hook_str(why));
    reported = why;
    if (why || !found.code_type)
        return false;
    python = &found;
    return true;
}

bool hook_find_python(const char *where) {
    lock();
    bool found = find(where);
    unlock();
    return found;
}

// Return the state of a thread, or 0 if it runs no Python.
static uint64_t find_thread(uint32_t tid) {
    const struct python_layout *layout = &python->layout;
    uint64_t interpreter = 0, thread, found;
    if (!read_word(python->runtime + layout->interpreters, &interpreter))
        return 0;
    for (int i = 0; interpreter && i < MOST_INTERPRETERS; i++) {
        if (!read_word(interpreter + layout->threads, &thread))
            return 0;
        for (int j = 0; thread && j < MOST_THREADS; j++) {
            if (!read_word(thread + layout->tid, &found))
                break;
            if (found == tid)
                return thread;
            if (!read_word(thread + layout->next_thread, &thread))
                break;
        }
        if (!read_word(interpreter + layout->next_interpreter, &interpreter))
            return 0;
    }
    return 0;
}

// Code objects

// Return memory that stays until the process ends, or NULL if there's enough of it already.
static void *keep(const void *from, size_t size) {
    if (size > python->arena_left) {
        char *made = python->arenas < MOST_ARENAS
                         ? mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                         : MAP_FAILED;
        if (made == MAP_FAILED || size > ARENA)
            return NULL;
        python->arenas++, python->arena = made, python->arena_left = ARENA;
    }
    void *copy = memcpy(python->arena, from, size);
    python->arena += size, python->arena_left -= size;
    return copy;
}

static size_t put_utf8(char *at, uint32_t c) {
    if (c < 0x80) {
        at[0] = (char)c;
        return 1;
    }
    size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; // bytes after the first
    for (size_t i = more; i; i--, c >>= 6)
        at[i] = (char)(0x80 | (c & 0x3f));
    at[0] = (char)((0xf00 >> more & 0xff) | c);
    return more + 1;
}

// Read a str, cut after MOST_TEXT characters. Surrogates, which aren't UTF-8, become question marks.
static const char *read_text(uint64_t at) {
    static unsigned char wide[4 * MOST_TEXT];
    static char text[3 * MOST_TEXT * 4 / 3 + 1];
    unsigned char head[STATE + 4];
    uint64_t length;
    uint32_t state;
    if (!hook_peek((const void *)at, head, sizeof(head)))
        return NULL;
    memcpy(&length, head + LENGTH, sizeof(length));
    memcpy(&state, head + STATE, sizeof(state));
    unsigned kind = state >> 2 & 7, compact = state >> 5 & 1, ascii = state >> 6 & 1;
    if ((kind != 1 && kind != 2 && kind != 4) || !compact)
        return NULL;
    length = length < MOST_TEXT ? length : MOST_TEXT;
    uint64_t data = at + python->layout.text + (ascii ? 0 : UTF8 + (python->version == 0x030b ? 8 : 0));
    if (!hook_peek((const void *)data, wide, length * kind))
        return NULL;
    size_t size = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t c = 0;
        memcpy(&c, wide + i * kind, kind);
        bool valid = c && c < 0x110000 && (c < 0xd800 || c > 0xdfff);
        size += put_utf8(text + size, valid ? c : '?');
    }
    text[size] = '\0';
    return keep(text, size + 1);
}

static void read_lines(struct code *code) {
    static unsigned char table[MOST_LINES];
    uint64_t size;
    code->size = 0;
    if (!read_word(code->key.lines + BYTES_SIZE, &size) || size > sizeof(table) ||
        !hook_peek((const void *)(code->key.lines + BYTES), table, size))
        return;
    code->line_table = keep(table, size);
    code->size = code->line_table ? (uint32_t)size : 0;
}

// Return the code object at an address, or NULL if there's none.
static const struct code *find_code(uint64_t at) {
    const struct python_layout *layout = &python->layout;
    unsigned char head[HEAD];
    uint64_t type;
    struct code found = {.key.at = at};
    if (!hook_peek((const void *)at, head, layout->bytecode))
        return NULL;
    memcpy(&type, head + TYPE, sizeof(type));
    if (type != python->code_type)
        return NULL;
    memcpy(&found.key.file, head + layout->file, 8);
    memcpy(&found.key.name, head + layout->name, 8);
    memcpy(&found.key.lines, head + layout->lines, 8);
    memcpy(&found.key.first_line, head + layout->first_line, 4);
    struct code *place = NULL;
    uint64_t hash = at * 0x9e3779b97f4a7c15u >> 40;
    for (unsigned tries = 0; tries < 16; tries++) {
        place = &python->codes[(hash + tries) % CODES];
        if (!place->key.at || place->key.at == at)
            break;
    }
    if (!memcmp(&place->key, &found.key, sizeof(found.key)))
        return place;
    found.file = read_text(found.key.file);
    found.name = read_text(found.key.name);
    found.number = ++python->numbers;
    read_lines(&found);
    *place = found;
    return place;
}

static uint64_t read_varint(const struct code *code, size_t *at) {
    uint64_t value = 0;
    for (unsigned shift = 0; *at < code->size && shift < 60; shift += 6) {
        unsigned char byte = code->line_table[(*at)++];
        value |= (uint64_t)(byte & 0x3f) << shift;
        if (!(byte & 0x40))
            break;
    }
    return value;
}

// Return the line of a code unit, or 0. An entry of the table covers some code units: a byte with its form
// and their number, then what that form has (Objects/locations.md in CPython).
static uint32_t find_line(const struct code *code, uint64_t unit) {
    enum { SHORT = 10, ONE_LINE = 13, NO_COLUMNS = 13, LONG = 14 };
    int64_t line = code->key.first_line;
    uint64_t units = 0;
    for (size_t at = 0; at < code->size;) {
        unsigned char first = code->line_table[at++];
        unsigned form = first >> 3 & 15;
        bool none = form > LONG;
        if (form < SHORT)
            at++;
        else if (form < ONE_LINE)
            line += form - SHORT, at += 2;
        else if (!none) {
            uint64_t delta = read_varint(code, &at);
            line += delta & 1 ? -(int64_t)(delta >> 1) : (int64_t)(delta >> 1);
            for (int i = 0; form == LONG && i < 3; i++)
                read_varint(code, &at);
        }
        units += (first & 7) + 1u;
        if (units > unit)
            return none || line < 0 ? 0 : (uint32_t)line;
    }
    return 0;
}

// Frames

struct link {
    uint64_t at, previous, code, instruction;
    unsigned char owner;
};

static bool read_link(uint64_t at, struct link *link) {
    const struct python_layout *layout = &python->layout;
    unsigned char frame[HEAD];
    if (!hook_peek((const void *)at, frame, layout->owner + 1))
        return false;
    link->at = at;
    memcpy(&link->previous, frame + layout->previous, 8);
    memcpy(&link->code, frame + layout->code, 8);
    memcpy(&link->instruction, frame + layout->instruction, 8);
    link->owner = frame[layout->owner];
    link->code &= (uint64_t)POINTER;
    return true;
}

// Collect the frames of a thread, innermost first. Returns their number.
static size_t walk(uint64_t thread, struct link *links, size_t most, bool *whole) {
    const struct python_layout *layout = &python->layout;
    uint64_t frame = 0;
    size_t count = 0;
    *whole = false;
    if (!read_word(thread + layout->frame, &frame) ||
        (layout->indirect && (!frame || !read_word(frame + layout->inner, &frame))))
        return 0;
    for (; frame && count < most; frame = links[count++].previous)
        if (!read_link(frame, &links[count]))
            return count;
    *whole = true;
    return count;
}

// Return how many of the outer frames are the same in two walks.
static size_t count_same(const struct link *a, size_t a_count, const struct link *b, size_t b_count) {
    size_t same = 0;
    for (; same < a_count && same < b_count; same++) {
        const struct link *mine = &a[a_count - 1 - same], *other = &b[b_count - 1 - same];
        if (mine->at != other->at || mine->previous != other->previous || mine->code != other->code)
            break;
    }
    return same;
}

static size_t read_frames(uint32_t tid, struct python_frame *frames, bool *changed) {
    static struct link walks[2][DEEPEST];
    const struct link *links = walks[0];
    size_t counts[2] = {0}, count = 0, same = 0, found = 0, agreed = 0;
    bool whole = false;
    uint64_t thread = python ? find_thread(tid) : 0, known = 0;
    if (!changed && thread)
        same = count = walk(thread, walks[0], DEEPEST, &whole);
    for (int i = 0; changed && thread && i < WALKS && agreed < AGREE; i++) {
        links = walks[i % 2];
        count = counts[i % 2] = walk(thread, walks[i % 2], DEEPEST, &whole);
        same = i && whole ? count_same(links, count, walks[1 - i % 2], counts[1 - i % 2]) : 0;
        agreed = same && same == count && count == counts[1 - i % 2] ? agreed + 1 : 1;
    }
    if (!thread || !read_word(thread + python->layout.tid, &known) || known != tid)
        return 0; // the thread has ended
    if (changed)
        *changed = same < count;
    for (size_t i = count - same; i < count; i++) {
        const struct code *code = links[i].owner < SHIM ? find_code(links[i].code) : NULL;
        uint64_t start = links[i].code + python->layout.bytecode;
        if (code && code->file && code->name)
            frames[found++] = (struct python_frame){code->number,
                                                    links[i].instruction < start
                                                        ? code->key.first_line // it's just beginning
                                                        : find_line(code, (links[i].instruction - start) / 2),
                                                    code->file, code->name};
    }
    return found;
}

struct python_stack {
    const struct python_frame *frames;
    size_t count;
};

static bool write_stack(uint64_t id, const void *what) {
    static struct gpt_frame frames[DEEPEST];
    const struct python_stack *stack = what;
    for (size_t i = 0; i < stack->count; i++) {
        const struct python_frame *frame = &stack->frames[i];
        frames[i] = (struct gpt_frame){.path = hook_str(frame->file),
                                       .function = hook_str(frame->name),
                                       .line = {frame->line != 0, frame->line}};
    }
    return HOOK_WRITE(stack, .id = id, .frames = {frames, stack->count});
}

static uint64_t number_frames(const struct python_frame *frames, size_t count) {
    uint64_t digest = 0x84222325cbf29ce4u;
    for (size_t i = 0; i < count; i++) {
        digest = (digest ^ frames[i].code) * 0x100000001b3u, digest ^= digest >> 29;
        digest = (digest ^ frames[i].line) * 0x100000001b3u, digest ^= digest >> 29;
    }
    return hook_number_stack(digest, write_stack, &(struct python_stack){frames, count});
}

uint64_t hook_number_python(uint32_t tid, bool *changed) {
    static struct python_frame frames[DEEPEST];
    lock();
    size_t count = read_frames(tid, frames, changed);
    uint64_t number = count ? number_frames(frames, count) : 0;
    unlock();
    return number;
}

// Look for Python in the first call, and ever more rarely after that: a program may load it later.
static bool has_python(void) {
    static _Atomic uint32_t tries;
    static _Atomic bool found;
    if (atomic_load_explicit(&found, memory_order_relaxed))
        return true;
    uint32_t number = atomic_fetch_add(&tries, 1) + 1;
    if (number & (number - 1))
        return false;
    atomic_store(&found, hook_find_python("--stacks"));
    return atomic_load(&found);
}

void hook_on_python_site(struct frame *frame) {
    hook_write_site(frame, has_python() ? hook_number_python(frame->thread->tid, NULL) : 0);
}
