// The record kinds of a GPT stream as C writes them; gpt-stream(5) says what they mean.
// Made by runtime/mkrecords.py from gpt/stream/records.py: change that one.
//
// gpt_pack_KIND appends one record and returns its size. A record that does not fit, or is larger than a
// record may be, returns 0 and leaves `at` where it was; the bytes after it may have been overwritten. What a
// designated initializer leaves out is absent if it is optional, and 0 or empty if it is not.
// Nothing here allocates, locks or sets errno: a signal handler may call it.

#ifndef GPT_RECORDS_H
#define GPT_RECORDS_H

#include "msgpack.h"

// clang-format off

#define GPT_VERSION "1.0"
#define GPT_MAX_RECORD ((size_t)67108864)

struct gpt_str { const char *data; size_t size; };   // UTF-8; optional: absent if data is NULL
struct gpt_bin { const void *data; size_t size; };   // the same
struct gpt_u64 { bool present; uint64_t value; };    // where it is optional

#define GPT_STR(literal) ((struct gpt_str){(literal), sizeof(literal) - 1})
#define GPT_U64(number) ((struct gpt_u64){true, (number)})

// Ends a record that began at `start`.
static inline size_t gpt_finish(struct gpt_packer *buffer, unsigned char *start) {
    size_t size = (size_t)(buffer->at - start);
    if (buffer->full || size > GPT_MAX_RECORD) {
        buffer->at = start;
        buffer->full = false;
        return 0;
    }
    return size;
}

struct gpt_symbol {
    struct gpt_str name; // mangled name
    struct gpt_u64 size; // optional: bytes of machine code; absent for PTX
};

static inline void gpt_put_symbol(struct gpt_packer *buffer, const struct gpt_symbol *record) {
    gpt_put_map(buffer, 1 + !!record->size.present);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    if (record->size.present) {
        gpt_put_raw(buffer, "\xa4" "size", 5);
        gpt_put_u64(buffer, record->size.value);
    }
}

struct gpt_field {
    struct gpt_str name; // name of the value
    struct gpt_str type; // u8 u16 u32 u64 i8 i16 i32 i64 f16 f32 f64
    uint64_t offset; // bytes from the start of the row or slot
};

static inline void gpt_put_field(struct gpt_packer *buffer, const struct gpt_field *record) {
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
}

struct gpt_column {
    struct gpt_str name; // name of the value
    struct gpt_str type; // as of a field, text, or number; with ? where a row may have no value
    uint64_t offset; // bytes from the start of the row
    struct gpt_str unit; // optional: ns, cycles, bytes, %, id, address, and of text kernel; absent for counts and plain text
    struct gpt_str title; // optional: what stands above it in a table; absent if that is the name
    struct gpt_str shown; // optional: in tables for people: never, any, under, line, exact; absent for always
};

static inline void gpt_put_column(struct gpt_packer *buffer, const struct gpt_column *record) {
    gpt_put_map(buffer, 3 + !!record->unit.data + !!record->title.data + !!record->shown.data);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    if (record->unit.data) {
        gpt_put_raw(buffer, "\xa4" "unit", 5);
        gpt_put_str(buffer, record->unit.data, record->unit.size);
    }
    if (record->title.data) {
        gpt_put_raw(buffer, "\xa5" "title", 6);
        gpt_put_str(buffer, record->title.data, record->title.size);
    }
    if (record->shown.data) {
        gpt_put_raw(buffer, "\xa5" "shown", 6);
        gpt_put_str(buffer, record->shown.data, record->shown.size);
    }
}

struct gpt_plot {
    struct gpt_str form; // bars, stack, lines, levels, histogram, spans, heat or roofs
    struct gpt_str x; // optional: column along the horizontal axis; of spans, where one begins
    struct { const struct gpt_str *items; size_t count; } y; // columns along the vertical axis; of spans and heat, that of rows; of roofs three
    struct gpt_str end; // optional: of spans and histogram: the column where one ends; of bars: of a number that stands at the end
    struct gpt_str lane; // optional: of spans: the column of its place within a row; of heat: a text that has a hue
    struct gpt_str color; // optional: column that has a color
    struct gpt_str of; // optional: only rows whose first text is this
    struct gpt_str title; // optional: what stands above it; absent for the first line of the verdict
};

static inline void gpt_put_plot(struct gpt_packer *buffer, const struct gpt_plot *record) {
    gpt_put_map(buffer, 2 + !!record->x.data + !!record->end.data + !!record->lane.data + !!record->color.data + !!record->of.data + !!record->title.data);
    gpt_put_raw(buffer, "\xa4" "form", 5);
    gpt_put_str(buffer, record->form.data, record->form.size);
    if (record->x.data) {
        gpt_put_raw(buffer, "\xa1" "x", 2);
        gpt_put_str(buffer, record->x.data, record->x.size);
    }
    gpt_put_raw(buffer, "\xa1" "y", 2);
    gpt_put_array(buffer, record->y.count);
    for (size_t i = 0; i < record->y.count; i++)
        gpt_put_str(buffer, record->y.items[i].data, record->y.items[i].size);
    if (record->end.data) {
        gpt_put_raw(buffer, "\xa3" "end", 4);
        gpt_put_str(buffer, record->end.data, record->end.size);
    }
    if (record->lane.data) {
        gpt_put_raw(buffer, "\xa4" "lane", 5);
        gpt_put_str(buffer, record->lane.data, record->lane.size);
    }
    if (record->color.data) {
        gpt_put_raw(buffer, "\xa5" "color", 6);
        gpt_put_str(buffer, record->color.data, record->color.size);
    }
    if (record->of.data) {
        gpt_put_raw(buffer, "\xa2" "of", 3);
        gpt_put_str(buffer, record->of.data, record->of.size);
    }
    if (record->title.data) {
        gpt_put_raw(buffer, "\xa5" "title", 6);
        gpt_put_str(buffer, record->title.data, record->title.size);
    }
}

struct gpt_param {
    uint64_t offset; // bytes from the start of the parameters
    uint64_t size; // bytes
    struct gpt_str type; // optional: as PTX declares it: u64, f32, b8[16]
    struct gpt_str space; // optional: of a pointer that says so (.ptr): global, const, shared, local or generic
    struct gpt_u64 map; // optional: id of the map whose buffer's address it takes
};

static inline void gpt_put_param(struct gpt_packer *buffer, const struct gpt_param *record) {
    gpt_put_map(buffer, 2 + !!record->type.data + !!record->space.data + !!record->map.present);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    gpt_put_raw(buffer, "\xa4" "size", 5);
    gpt_put_u64(buffer, record->size);
    if (record->type.data) {
        gpt_put_raw(buffer, "\xa4" "type", 5);
        gpt_put_str(buffer, record->type.data, record->type.size);
    }
    if (record->space.data) {
        gpt_put_raw(buffer, "\xa5" "space", 6);
        gpt_put_str(buffer, record->space.data, record->space.size);
    }
    if (record->map.present) {
        gpt_put_raw(buffer, "\xa3" "map", 4);
        gpt_put_u64(buffer, record->map.value);
    }
}

struct gpt_variable {
    struct gpt_str name; // as in its module
    struct gpt_str space; // global or const
    struct gpt_u64 size; // optional: bytes; absent if the module does not say
    struct gpt_u64 offset; // optional: of global: bytes from the start of the table, where its address goes
    struct gpt_str copy; // optional: of const: always, or taken, which is when the program took its address
};

static inline void gpt_put_variable(struct gpt_packer *buffer, const struct gpt_variable *record) {
    gpt_put_map(buffer, 2 + !!record->size.present + !!record->offset.present + !!record->copy.data);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa5" "space", 6);
    gpt_put_str(buffer, record->space.data, record->space.size);
    if (record->size.present) {
        gpt_put_raw(buffer, "\xa4" "size", 5);
        gpt_put_u64(buffer, record->size.value);
    }
    if (record->offset.present) {
        gpt_put_raw(buffer, "\xa6" "offset", 7);
        gpt_put_u64(buffer, record->offset.value);
    }
    if (record->copy.data) {
        gpt_put_raw(buffer, "\xa4" "copy", 5);
        gpt_put_str(buffer, record->copy.data, record->copy.size);
    }
}

struct gpt_frame {
    struct gpt_str path; // optional: the file that the code is in; absent: in none
    uint64_t offset; // return address as an offset in that file; else as it is
};

static inline void gpt_put_frame(struct gpt_packer *buffer, const struct gpt_frame *record) {
    gpt_put_map(buffer, 1 + !!record->path.data);
    if (record->path.data) {
        gpt_put_raw(buffer, "\xa4" "path", 5);
        gpt_put_str(buffer, record->path.data, record->path.size);
    }
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
}

struct gpt_operation {
    struct gpt_str type; // as of an api: memcpy, memset, memory, or stream for a function of the host
    struct gpt_str op; // what it does within its type: HtoD, set, alloc, free, host, ...
    uint64_t nodes; // that do it, each once a launch
    uint64_t bytes; // of all of them, in one launch
    struct gpt_u64 address; // optional: of memory: where it is
};

static inline void gpt_put_operation(struct gpt_packer *buffer, const struct gpt_operation *record) {
    gpt_put_map(buffer, 4 + !!record->address.present);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa2" "op", 3);
    gpt_put_str(buffer, record->op.data, record->op.size);
    gpt_put_raw(buffer, "\xa5" "nodes", 6);
    gpt_put_u64(buffer, record->nodes);
    gpt_put_raw(buffer, "\xa5" "bytes", 6);
    gpt_put_u64(buffer, record->bytes);
    if (record->address.present) {
        gpt_put_raw(buffer, "\xa7" "address", 8);
        gpt_put_u64(buffer, record->address.value);
    }
}

struct gpt_site {
    struct gpt_str probe; // name of the probe
    struct gpt_str position; // as the probe file says it
    uint64_t matched; // places in the program that it means
    uint64_t woven; // those that the probe was woven into
};

static inline void gpt_put_site(struct gpt_packer *buffer, const struct gpt_site *record) {
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa5" "probe", 6);
    gpt_put_str(buffer, record->probe.data, record->probe.size);
    gpt_put_raw(buffer, "\xa8" "position", 9);
    gpt_put_str(buffer, record->position.data, record->position.size);
    gpt_put_raw(buffer, "\xa7" "matched", 8);
    gpt_put_u64(buffer, record->matched);
    gpt_put_raw(buffer, "\xa5" "woven", 6);
    gpt_put_u64(buffer, record->woven);
}

struct gpt_header {
    struct gpt_str version; // MAJOR.MINOR of this format
    struct gpt_str tool; // the source that wrote the segment
    struct { const struct gpt_str *items; size_t count; } argv; // its command line
    struct gpt_str host; // host name
    uint64_t pid; // process id
    struct gpt_u64 rank; // optional: of the process in its job, if its environment has one
    struct gpt_str boot_id; // optional: the kernel's boot id; joins clocks of one machine
    uint64_t realtime; // ns since the epoch
    uint64_t monotonic; // CLOCK_MONOTONIC at the same moment, ns
    struct gpt_u64 tsc; // optional: the time stamp counter at the same moment, where time stamps are its ticks
    struct gpt_u64 tsc_hz; // optional: ticks a second of the time stamps, if they are not ns
    struct gpt_u64 captures; // optional: 1 if calls that were captured into a graph have apis of the type capture
    struct gpt_u64 attached; // optional: 1 if the process ran before it was watched: what it did until then is not recorded
    struct { const struct gpt_str *items; size_t count; } via; // the filters that the segment came through, oldest first
};

static inline size_t gpt_pack_header(struct gpt_packer *buffer, const struct gpt_header *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 9 + !!record->rank.present + !!record->boot_id.data + !!record->tsc.present + !!record->tsc_hz.present + !!record->captures.present + !!record->attached.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "header", 7);
    gpt_put_raw(buffer, "\xa7" "version", 8);
    gpt_put_str(buffer, record->version.data, record->version.size);
    gpt_put_raw(buffer, "\xa4" "tool", 5);
    gpt_put_str(buffer, record->tool.data, record->tool.size);
    gpt_put_raw(buffer, "\xa4" "argv", 5);
    gpt_put_array(buffer, record->argv.count);
    for (size_t i = 0; i < record->argv.count; i++)
        gpt_put_str(buffer, record->argv.items[i].data, record->argv.items[i].size);
    gpt_put_raw(buffer, "\xa4" "host", 5);
    gpt_put_str(buffer, record->host.data, record->host.size);
    gpt_put_raw(buffer, "\xa3" "pid", 4);
    gpt_put_u64(buffer, record->pid);
    if (record->rank.present) {
        gpt_put_raw(buffer, "\xa4" "rank", 5);
        gpt_put_u64(buffer, record->rank.value);
    }
    if (record->boot_id.data) {
        gpt_put_raw(buffer, "\xa7" "boot_id", 8);
        gpt_put_str(buffer, record->boot_id.data, record->boot_id.size);
    }
    gpt_put_raw(buffer, "\xa8" "realtime", 9);
    gpt_put_u64(buffer, record->realtime);
    gpt_put_raw(buffer, "\xa9" "monotonic", 10);
    gpt_put_u64(buffer, record->monotonic);
    if (record->tsc.present) {
        gpt_put_raw(buffer, "\xa3" "tsc", 4);
        gpt_put_u64(buffer, record->tsc.value);
    }
    if (record->tsc_hz.present) {
        gpt_put_raw(buffer, "\xa6" "tsc_hz", 7);
        gpt_put_u64(buffer, record->tsc_hz.value);
    }
    if (record->captures.present) {
        gpt_put_raw(buffer, "\xa8" "captures", 9);
        gpt_put_u64(buffer, record->captures.value);
    }
    if (record->attached.present) {
        gpt_put_raw(buffer, "\xa8" "attached", 9);
        gpt_put_u64(buffer, record->attached.value);
    }
    gpt_put_raw(buffer, "\xa3" "via", 4);
    gpt_put_array(buffer, record->via.count);
    for (size_t i = 0; i < record->via.count; i++)
        gpt_put_str(buffer, record->via.items[i].data, record->via.items[i].size);
    return gpt_finish(buffer, start);
}

struct gpt_end {
    uint64_t records; // records of the segment between header and end
    uint64_t status; // exit status of the source
};

static inline size_t gpt_pack_end(struct gpt_packer *buffer, const struct gpt_end *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa3" "end", 4);
    gpt_put_raw(buffer, "\xa7" "records", 8);
    gpt_put_u64(buffer, record->records);
    gpt_put_raw(buffer, "\xa6" "status", 7);
    gpt_put_u64(buffer, record->status);
    return gpt_finish(buffer, start);
}

struct gpt_diag {
    struct gpt_str level; // error or warning
    struct gpt_str where; // location
    struct gpt_str text; // the fact
    struct gpt_str ref; // optional: what it is about: a path, a kernel, an id
};

static inline size_t gpt_pack_diag(struct gpt_packer *buffer, const struct gpt_diag *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4 + !!record->ref.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa4" "diag", 5);
    gpt_put_raw(buffer, "\xa5" "level", 6);
    gpt_put_str(buffer, record->level.data, record->level.size);
    gpt_put_raw(buffer, "\xa5" "where", 6);
    gpt_put_str(buffer, record->where.data, record->where.size);
    gpt_put_raw(buffer, "\xa4" "text", 5);
    gpt_put_str(buffer, record->text.data, record->text.size);
    if (record->ref.data) {
        gpt_put_raw(buffer, "\xa3" "ref", 4);
        gpt_put_str(buffer, record->ref.data, record->ref.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_resume {
    uint64_t back; // how many headers lie between that of the segment and here
};

static inline size_t gpt_pack_resume(struct gpt_packer *buffer, const struct gpt_resume *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 2);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "resume", 7);
    gpt_put_raw(buffer, "\xa4" "back", 5);
    gpt_put_u64(buffer, record->back);
    return gpt_finish(buffer, start);
}

struct gpt_sync {
    uint64_t id; // passed on and flushed after all that earlier records led to
};

static inline size_t gpt_pack_sync(struct gpt_packer *buffer, const struct gpt_sync *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 2);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa4" "sync", 5);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    return gpt_finish(buffer, start);
}

struct gpt_child {
    uint64_t pid; // process id
    struct gpt_str how; // fork, vfork, exec or spawn
    struct gpt_str path; // optional: its trace, the name of a file in this one's folder
};

static inline size_t gpt_pack_child(struct gpt_packer *buffer, const struct gpt_child *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->path.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "child", 6);
    gpt_put_raw(buffer, "\xa3" "pid", 4);
    gpt_put_u64(buffer, record->pid);
    gpt_put_raw(buffer, "\xa3" "how", 4);
    gpt_put_str(buffer, record->how.data, record->how.size);
    if (record->path.data) {
        gpt_put_raw(buffer, "\xa4" "path", 5);
        gpt_put_str(buffer, record->path.data, record->path.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_library {
    struct gpt_str path; // as given; /-joined member path inside a wheel
    struct gpt_str type; // optional: elf, archive, fatbin, cubin, ptx or offload
    uint64_t size; // bytes of the file
    struct gpt_str build_id; // optional: hexadecimal
    struct gpt_str sha256; // optional: hexadecimal, of the file
    struct gpt_str machine; // optional: x86_64, aarch64 or cuda
    struct gpt_u64 gpu; // optional: bytes of its sections that hold GPU code; absent if a trace saw none
    struct gpt_str replaces; // optional: the path that the program knows, where gpt-hook put this file in its place
};

static inline size_t gpt_pack_library(struct gpt_packer *buffer, const struct gpt_library *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->type.data + !!record->build_id.data + !!record->sha256.data + !!record->machine.data + !!record->gpu.present + !!record->replaces.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_raw(buffer, "\xa4" "path", 5);
    gpt_put_str(buffer, record->path.data, record->path.size);
    if (record->type.data) {
        gpt_put_raw(buffer, "\xa4" "type", 5);
        gpt_put_str(buffer, record->type.data, record->type.size);
    }
    gpt_put_raw(buffer, "\xa4" "size", 5);
    gpt_put_u64(buffer, record->size);
    if (record->build_id.data) {
        gpt_put_raw(buffer, "\xa8" "build_id", 9);
        gpt_put_str(buffer, record->build_id.data, record->build_id.size);
    }
    if (record->sha256.data) {
        gpt_put_raw(buffer, "\xa6" "sha256", 7);
        gpt_put_str(buffer, record->sha256.data, record->sha256.size);
    }
    if (record->machine.data) {
        gpt_put_raw(buffer, "\xa7" "machine", 8);
        gpt_put_str(buffer, record->machine.data, record->machine.size);
    }
    if (record->gpu.present) {
        gpt_put_raw(buffer, "\xa3" "gpu", 4);
        gpt_put_u64(buffer, record->gpu.value);
    }
    if (record->replaces.data) {
        gpt_put_raw(buffer, "\xa8" "replaces", 9);
        gpt_put_str(buffer, record->replaces.data, record->replaces.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_library_end {
    struct gpt_str path; // of the library that is complete with this record
};

static inline size_t gpt_pack_library_end(struct gpt_packer *buffer, const struct gpt_library_end *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 2);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xab" "library_end", 12);
    gpt_put_raw(buffer, "\xa4" "path", 5);
    gpt_put_str(buffer, record->path.data, record->path.size);
    return gpt_finish(buffer, start);
}

struct gpt_element {
    struct gpt_str library; // path of the library
    struct gpt_str section; // optional: section that holds it
    struct gpt_str member; // optional: member of the archive that holds it
    uint64_t region; // file offset of its region, or its own offset outside of regions
    uint64_t index; // position in the library, from 0
    struct gpt_str type; // cubin, ptx, ltoir, tileir, or unknown:KIND
    struct gpt_str arch; // compute capability, sm_90a
    uint64_t offset; // file offset of its header
    uint64_t header_size; // bytes; 0 for a bare cubin
    uint64_t payload_size; // bytes in the file after the header
    uint64_t size; // bytes unpacked
    struct gpt_str codec; // none, lz4 or zstd
    uint64_t flags; // as in the header
    struct { const struct gpt_symbol *items; size_t count; } kernels; // entry functions
    struct { const struct gpt_symbol *items; size_t count; } functions; // device functions
    uint64_t variables; // device variables defined
    struct gpt_str sha256; // optional: hexadecimal, of the unpacked bytes of a cubin that is in no region
    struct gpt_bin data; // optional: the unpacked bytes
};

static inline size_t gpt_pack_element(struct gpt_packer *buffer, const struct gpt_element *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 15 + !!record->section.data + !!record->member.data + !!record->sha256.data + !!record->data.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa7" "element", 8);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    if (record->section.data) {
        gpt_put_raw(buffer, "\xa7" "section", 8);
        gpt_put_str(buffer, record->section.data, record->section.size);
    }
    if (record->member.data) {
        gpt_put_raw(buffer, "\xa6" "member", 7);
        gpt_put_str(buffer, record->member.data, record->member.size);
    }
    gpt_put_raw(buffer, "\xa6" "region", 7);
    gpt_put_u64(buffer, record->region);
    gpt_put_raw(buffer, "\xa5" "index", 6);
    gpt_put_u64(buffer, record->index);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    gpt_put_raw(buffer, "\xab" "header_size", 12);
    gpt_put_u64(buffer, record->header_size);
    gpt_put_raw(buffer, "\xac" "payload_size", 13);
    gpt_put_u64(buffer, record->payload_size);
    gpt_put_raw(buffer, "\xa4" "size", 5);
    gpt_put_u64(buffer, record->size);
    gpt_put_raw(buffer, "\xa5" "codec", 6);
    gpt_put_str(buffer, record->codec.data, record->codec.size);
    gpt_put_raw(buffer, "\xa5" "flags", 6);
    gpt_put_u64(buffer, record->flags);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_symbol(buffer, &record->kernels.items[i]);
    gpt_put_raw(buffer, "\xa9" "functions", 10);
    gpt_put_array(buffer, record->functions.count);
    for (size_t i = 0; i < record->functions.count; i++)
        gpt_put_symbol(buffer, &record->functions.items[i]);
    gpt_put_raw(buffer, "\xa9" "variables", 10);
    gpt_put_u64(buffer, record->variables);
    if (record->sha256.data) {
        gpt_put_raw(buffer, "\xa6" "sha256", 7);
        gpt_put_str(buffer, record->sha256.data, record->sha256.size);
    }
    if (record->data.data) {
        gpt_put_raw(buffer, "\xa4" "data", 5);
        gpt_put_bin(buffer, record->data.data, record->data.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_span {
    struct gpt_str library; // path of the library
    uint64_t start; // file offset
    uint64_t end; // file offset, exclusive
    struct gpt_str reason; // why it is not needed
    struct gpt_str arch; // optional: the devices of one --arch, sm_80,sm_90, if the library is cut for these alone
};

static inline size_t gpt_pack_span(struct gpt_packer *buffer, const struct gpt_span *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5 + !!record->arch.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa4" "span", 5);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa5" "start", 6);
    gpt_put_u64(buffer, record->start);
    gpt_put_raw(buffer, "\xa3" "end", 4);
    gpt_put_u64(buffer, record->end);
    gpt_put_raw(buffer, "\xa6" "reason", 7);
    gpt_put_str(buffer, record->reason.data, record->reason.size);
    if (record->arch.data) {
        gpt_put_raw(buffer, "\xa4" "arch", 5);
        gpt_put_str(buffer, record->arch.data, record->arch.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_trim {
    struct gpt_str library; // path of the library
    uint64_t offset; // file offset of the header of an element that stays, a cubin
    struct { const struct gpt_str *items; size_t count; } kernels; // kernels of it that are not needed
    struct gpt_str reason; // why
    struct gpt_str arch; // optional: as in span
};

static inline size_t gpt_pack_trim(struct gpt_packer *buffer, const struct gpt_trim *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5 + !!record->arch.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa4" "trim", 5);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_str(buffer, record->kernels.items[i].data, record->kernels.items[i].size);
    gpt_put_raw(buffer, "\xa6" "reason", 7);
    gpt_put_str(buffer, record->reason.data, record->reason.size);
    if (record->arch.data) {
        gpt_put_raw(buffer, "\xa4" "arch", 5);
        gpt_put_str(buffer, record->arch.data, record->arch.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_trimmed {
    struct gpt_str library; // path of the library
    uint64_t offset; // file offset of the header of the element, in the library that was read
    uint64_t kernels; // kernels whose code is gone
    uint64_t functions; // device functions that only these needed
    uint64_t code; // bytes of their code, unpacked
    uint64_t size_before; // bytes of the element in the file, header included
    uint64_t size_after; // bytes of the element in the file, header included
    struct gpt_u64 left; // optional: unused kernels that stay nevertheless
    struct gpt_str reason; // optional: why the element stays whole
    struct gpt_str zeroed; // optional: why code became zeros where kernels were to be dropped
};

static inline size_t gpt_pack_trimmed(struct gpt_packer *buffer, const struct gpt_trimmed *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 8 + !!record->left.present + !!record->reason.data + !!record->zeroed.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa7" "trimmed", 8);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_u64(buffer, record->kernels);
    gpt_put_raw(buffer, "\xa9" "functions", 10);
    gpt_put_u64(buffer, record->functions);
    gpt_put_raw(buffer, "\xa4" "code", 5);
    gpt_put_u64(buffer, record->code);
    gpt_put_raw(buffer, "\xab" "size_before", 12);
    gpt_put_u64(buffer, record->size_before);
    gpt_put_raw(buffer, "\xaa" "size_after", 11);
    gpt_put_u64(buffer, record->size_after);
    if (record->left.present) {
        gpt_put_raw(buffer, "\xa4" "left", 5);
        gpt_put_u64(buffer, record->left.value);
    }
    if (record->reason.data) {
        gpt_put_raw(buffer, "\xa6" "reason", 7);
        gpt_put_str(buffer, record->reason.data, record->reason.size);
    }
    if (record->zeroed.data) {
        gpt_put_raw(buffer, "\xa6" "zeroed", 7);
        gpt_put_str(buffer, record->zeroed.data, record->zeroed.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_recompressed {
    struct gpt_str library; // path of the library
    uint64_t offset; // file offset of the header of the element, in the library that was read
    struct gpt_str type; // of the element
    struct gpt_str arch; // the same
    struct gpt_str codec; // that it had: none, lz4 or zstd; now it's zstd, unless there is a reason
    uint64_t size_before; // bytes of the element in the file, header included
    uint64_t size_after; // bytes of the element in the file, header included
    uint64_t time; // ns of CPU time that it took to unpack it and to pack it again
    struct gpt_str reason; // optional: why the element stays as it was
};

static inline size_t gpt_pack_recompressed(struct gpt_packer *buffer, const struct gpt_recompressed *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 9 + !!record->reason.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xac" "recompressed", 13);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa6" "offset", 7);
    gpt_put_u64(buffer, record->offset);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    gpt_put_raw(buffer, "\xa5" "codec", 6);
    gpt_put_str(buffer, record->codec.data, record->codec.size);
    gpt_put_raw(buffer, "\xab" "size_before", 12);
    gpt_put_u64(buffer, record->size_before);
    gpt_put_raw(buffer, "\xaa" "size_after", 11);
    gpt_put_u64(buffer, record->size_after);
    gpt_put_raw(buffer, "\xa4" "time", 5);
    gpt_put_u64(buffer, record->time);
    if (record->reason.data) {
        gpt_put_raw(buffer, "\xa6" "reason", 7);
        gpt_put_str(buffer, record->reason.data, record->reason.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_tally {
    struct gpt_str library; // path of the library
    struct gpt_str reason; // kept, or why not
    uint64_t elements; // elements
    uint64_t kernels; // entry functions in them
    uint64_t bytes; // bytes in the file, headers included
    struct gpt_str arch; // optional: as in span
};

static inline size_t gpt_pack_tally(struct gpt_packer *buffer, const struct gpt_tally *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6 + !!record->arch.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "tally", 6);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa6" "reason", 7);
    gpt_put_str(buffer, record->reason.data, record->reason.size);
    gpt_put_raw(buffer, "\xa8" "elements", 9);
    gpt_put_u64(buffer, record->elements);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_u64(buffer, record->kernels);
    gpt_put_raw(buffer, "\xa5" "bytes", 6);
    gpt_put_u64(buffer, record->bytes);
    if (record->arch.data) {
        gpt_put_raw(buffer, "\xa4" "arch", 5);
        gpt_put_str(buffer, record->arch.data, record->arch.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_repacked {
    struct gpt_str wheel; // path of the wheel that was read
    struct gpt_str output; // path of the wheel that was written
    uint64_t size_before; // bytes of the file
    uint64_t size_after; // bytes of the file
};

static inline size_t gpt_pack_repacked(struct gpt_packer *buffer, const struct gpt_repacked *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa8" "repacked", 9);
    gpt_put_raw(buffer, "\xa5" "wheel", 6);
    gpt_put_str(buffer, record->wheel.data, record->wheel.size);
    gpt_put_raw(buffer, "\xa6" "output", 7);
    gpt_put_str(buffer, record->output.data, record->output.size);
    gpt_put_raw(buffer, "\xab" "size_before", 12);
    gpt_put_u64(buffer, record->size_before);
    gpt_put_raw(buffer, "\xaa" "size_after", 11);
    gpt_put_u64(buffer, record->size_after);
    return gpt_finish(buffer, start);
}

struct gpt_patched {
    struct gpt_str library; // path of the library that was read
    struct gpt_str output; // path of the library that was written
    struct gpt_str mode; // fill, hole or compact; copy if nothing was unused
    uint64_t size_before; // bytes of the file
    uint64_t size_after; // bytes of the file
    uint64_t disk_before; // bytes that it takes on disk
    uint64_t disk_after; // bytes that it takes on disk
    uint64_t gpu_before; // bytes of GPU code: headers and payloads of live elements
    uint64_t gpu_after; // bytes of GPU code
    struct gpt_u64 zstd_before; // optional: bytes of GPU code if every element were packed with zstd at level 19, and no larger
    struct gpt_u64 zstd_after; // optional: the same
    struct gpt_str reason; // optional: why the mode is not the one that was asked for
};

static inline size_t gpt_pack_patched(struct gpt_packer *buffer, const struct gpt_patched *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 10 + !!record->zstd_before.present + !!record->zstd_after.present + !!record->reason.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa7" "patched", 8);
    gpt_put_raw(buffer, "\xa7" "library", 8);
    gpt_put_str(buffer, record->library.data, record->library.size);
    gpt_put_raw(buffer, "\xa6" "output", 7);
    gpt_put_str(buffer, record->output.data, record->output.size);
    gpt_put_raw(buffer, "\xa4" "mode", 5);
    gpt_put_str(buffer, record->mode.data, record->mode.size);
    gpt_put_raw(buffer, "\xab" "size_before", 12);
    gpt_put_u64(buffer, record->size_before);
    gpt_put_raw(buffer, "\xaa" "size_after", 11);
    gpt_put_u64(buffer, record->size_after);
    gpt_put_raw(buffer, "\xab" "disk_before", 12);
    gpt_put_u64(buffer, record->disk_before);
    gpt_put_raw(buffer, "\xaa" "disk_after", 11);
    gpt_put_u64(buffer, record->disk_after);
    gpt_put_raw(buffer, "\xaa" "gpu_before", 11);
    gpt_put_u64(buffer, record->gpu_before);
    gpt_put_raw(buffer, "\xa9" "gpu_after", 10);
    gpt_put_u64(buffer, record->gpu_after);
    if (record->zstd_before.present) {
        gpt_put_raw(buffer, "\xab" "zstd_before", 12);
        gpt_put_u64(buffer, record->zstd_before.value);
    }
    if (record->zstd_after.present) {
        gpt_put_raw(buffer, "\xaa" "zstd_after", 11);
        gpt_put_u64(buffer, record->zstd_after.value);
    }
    if (record->reason.data) {
        gpt_put_raw(buffer, "\xa6" "reason", 7);
        gpt_put_str(buffer, record->reason.data, record->reason.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_device {
    uint64_t index; // ordinal in the process
    struct gpt_str name; // as the driver gives it
    struct gpt_str arch; // compute capability, sm_90
    struct gpt_str uuid; // optional: as nvidia-smi prints it
    struct gpt_str runs; // sass, or ptx for a device that takes PTX only
    struct gpt_u64 sms; // optional: multiprocessors
    struct gpt_u64 warps; // optional: that a multiprocessor holds at once
    struct gpt_u64 blocks; // optional: the same of blocks
    struct gpt_u64 clock_hz; // optional: highest rate of the clock of multiprocessors
    struct gpt_u64 memory_hz; // optional: highest rate of the clock of its memory
    struct gpt_u64 bus_bits; // optional: width of the bus to its memory
};

static inline size_t gpt_pack_device(struct gpt_packer *buffer, const struct gpt_device *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5 + !!record->uuid.data + !!record->sms.present + !!record->warps.present + !!record->blocks.present + !!record->clock_hz.present + !!record->memory_hz.present + !!record->bus_bits.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "device", 7);
    gpt_put_raw(buffer, "\xa5" "index", 6);
    gpt_put_u64(buffer, record->index);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    if (record->uuid.data) {
        gpt_put_raw(buffer, "\xa4" "uuid", 5);
        gpt_put_str(buffer, record->uuid.data, record->uuid.size);
    }
    gpt_put_raw(buffer, "\xa4" "runs", 5);
    gpt_put_str(buffer, record->runs.data, record->runs.size);
    if (record->sms.present) {
        gpt_put_raw(buffer, "\xa3" "sms", 4);
        gpt_put_u64(buffer, record->sms.value);
    }
    if (record->warps.present) {
        gpt_put_raw(buffer, "\xa5" "warps", 6);
        gpt_put_u64(buffer, record->warps.value);
    }
    if (record->blocks.present) {
        gpt_put_raw(buffer, "\xa6" "blocks", 7);
        gpt_put_u64(buffer, record->blocks.value);
    }
    if (record->clock_hz.present) {
        gpt_put_raw(buffer, "\xa8" "clock_hz", 9);
        gpt_put_u64(buffer, record->clock_hz.value);
    }
    if (record->memory_hz.present) {
        gpt_put_raw(buffer, "\xa9" "memory_hz", 10);
        gpt_put_u64(buffer, record->memory_hz.value);
    }
    if (record->bus_bits.present) {
        gpt_put_raw(buffer, "\xa8" "bus_bits", 9);
        gpt_put_u64(buffer, record->bus_bits.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_module {
    uint64_t id; // number in the segment
    struct gpt_str type; // fatbin, cubin or ptx
    struct gpt_str sha256; // optional: hexadecimal, of the image
    struct gpt_str path; // optional: the file whose mapping holds the image
    struct gpt_u64 offset; // optional: file offset of the image
    struct gpt_u64 size; // optional: bytes of the image
    struct gpt_bin data; // optional: the image
    struct { const struct gpt_str *items; size_t count; } only; // optional: kernels to make code of; absent: all
    struct gpt_str arch; // optional: of the device: each of these kernels is wanted once, in the PTX that it would run
    struct gpt_u64 registers; // optional: most of a thread that its kernels may use; absent: as many as they take
    struct gpt_str saved; // optional: the file that gpt-hook --save-modules wrote it to
    struct gpt_str loader; // optional: the library whose code loaded an image that lies in no file
    struct gpt_str of; // optional: PID:ID of a request: the process that asks, and the id in its trace
};

static inline size_t gpt_pack_module(struct gpt_packer *buffer, const struct gpt_module *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->sha256.data + !!record->path.data + !!record->offset.present + !!record->size.present + !!record->data.data + !!record->only.items + !!record->arch.data + !!record->registers.present + !!record->saved.data + !!record->loader.data + !!record->of.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    if (record->sha256.data) {
        gpt_put_raw(buffer, "\xa6" "sha256", 7);
        gpt_put_str(buffer, record->sha256.data, record->sha256.size);
    }
    if (record->path.data) {
        gpt_put_raw(buffer, "\xa4" "path", 5);
        gpt_put_str(buffer, record->path.data, record->path.size);
    }
    if (record->offset.present) {
        gpt_put_raw(buffer, "\xa6" "offset", 7);
        gpt_put_u64(buffer, record->offset.value);
    }
    if (record->size.present) {
        gpt_put_raw(buffer, "\xa4" "size", 5);
        gpt_put_u64(buffer, record->size.value);
    }
    if (record->data.data) {
        gpt_put_raw(buffer, "\xa4" "data", 5);
        gpt_put_bin(buffer, record->data.data, record->data.size);
    }
    if (record->only.items) {
        gpt_put_raw(buffer, "\xa4" "only", 5);
        gpt_put_array(buffer, record->only.count);
        for (size_t i = 0; i < record->only.count; i++)
            gpt_put_str(buffer, record->only.items[i].data, record->only.items[i].size);
    }
    if (record->arch.data) {
        gpt_put_raw(buffer, "\xa4" "arch", 5);
        gpt_put_str(buffer, record->arch.data, record->arch.size);
    }
    if (record->registers.present) {
        gpt_put_raw(buffer, "\xa9" "registers", 10);
        gpt_put_u64(buffer, record->registers.value);
    }
    if (record->saved.data) {
        gpt_put_raw(buffer, "\xa5" "saved", 6);
        gpt_put_str(buffer, record->saved.data, record->saved.size);
    }
    if (record->loader.data) {
        gpt_put_raw(buffer, "\xa6" "loader", 7);
        gpt_put_str(buffer, record->loader.data, record->loader.size);
    }
    if (record->of.data) {
        gpt_put_raw(buffer, "\xa2" "of", 3);
        gpt_put_str(buffer, record->of.data, record->of.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_function {
    uint64_t id; // number in the segment
    struct gpt_u64 module; // optional: id of its module
    struct gpt_str name; // mangled name: it was looked up, so it is used
};

static inline size_t gpt_pack_function(struct gpt_packer *buffer, const struct gpt_function *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->module.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa8" "function", 9);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    if (record->module.present) {
        gpt_put_raw(buffer, "\xa6" "module", 7);
        gpt_put_u64(buffer, record->module.value);
    }
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    return gpt_finish(buffer, start);
}

struct gpt_lookup {
    uint64_t module; // id of the module; chunks of several threads may bring it later
    struct gpt_str what; // enumerate or variable: the module may need all that it holds
    struct gpt_str name; // optional: of the variable
};

static inline size_t gpt_pack_lookup(struct gpt_packer *buffer, const struct gpt_lookup *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->name.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "lookup", 7);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_u64(buffer, record->module);
    gpt_put_raw(buffer, "\xa4" "what", 5);
    gpt_put_str(buffer, record->what.data, record->what.size);
    if (record->name.data) {
        gpt_put_raw(buffer, "\xa4" "name", 5);
        gpt_put_str(buffer, record->name.data, record->name.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_ptx {
    uint64_t id; // number in the segment
    struct gpt_str module; // where it came from: PATH#INDEX
    struct gpt_str arch; // its target
    struct { const struct gpt_str *items; size_t count; } kernels; // entry functions
    struct { const struct gpt_str *items; size_t count; } only; // optional: as in the module that it is of
    struct gpt_u64 registers; // optional: the same
    struct gpt_bin data; // the text, without trailing NUL
    struct gpt_bin original; // optional: the text before probes were woven in
};

static inline size_t gpt_pack_ptx(struct gpt_packer *buffer, const struct gpt_ptx *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6 + !!record->only.items + !!record->registers.present + !!record->original.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa3" "ptx", 4);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_str(buffer, record->module.data, record->module.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_str(buffer, record->kernels.items[i].data, record->kernels.items[i].size);
    if (record->only.items) {
        gpt_put_raw(buffer, "\xa4" "only", 5);
        gpt_put_array(buffer, record->only.count);
        for (size_t i = 0; i < record->only.count; i++)
            gpt_put_str(buffer, record->only.items[i].data, record->only.items[i].size);
    }
    if (record->registers.present) {
        gpt_put_raw(buffer, "\xa9" "registers", 10);
        gpt_put_u64(buffer, record->registers.value);
    }
    gpt_put_raw(buffer, "\xa4" "data", 5);
    gpt_put_bin(buffer, record->data.data, record->data.size);
    if (record->original.data) {
        gpt_put_raw(buffer, "\xa8" "original", 9);
        gpt_put_bin(buffer, record->original.data, record->original.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_cubin {
    uint64_t id; // of the ptx record that it was made from
    struct gpt_str module; // as there
    struct gpt_str arch; // compute capability, sm_90a
    struct { const struct gpt_str *items; size_t count; } kernels; // entry functions
    struct gpt_bin data; // the cubin
    struct gpt_bin original; // optional: the same without probes
};

static inline size_t gpt_pack_cubin(struct gpt_packer *buffer, const struct gpt_cubin *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6 + !!record->original.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "cubin", 6);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_str(buffer, record->module.data, record->module.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_str(buffer, record->kernels.items[i].data, record->kernels.items[i].size);
    gpt_put_raw(buffer, "\xa4" "data", 5);
    gpt_put_bin(buffer, record->data.data, record->data.size);
    if (record->original.data) {
        gpt_put_raw(buffer, "\xa8" "original", 9);
        gpt_put_bin(buffer, record->original.data, record->original.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_object {
    uint64_t id; // of the ptx record that it was made from
    struct gpt_str module; // as there
    struct gpt_str arch; // host
    struct { const struct gpt_str *items; size_t count; } kernels; // entry functions
    struct gpt_bin data; // the shared object
    struct gpt_bin original; // optional: the same without probes
};

static inline size_t gpt_pack_object(struct gpt_packer *buffer, const struct gpt_object *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6 + !!record->original.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "object", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_str(buffer, record->module.data, record->module.size);
    gpt_put_raw(buffer, "\xa4" "arch", 5);
    gpt_put_str(buffer, record->arch.data, record->arch.size);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_str(buffer, record->kernels.items[i].data, record->kernels.items[i].size);
    gpt_put_raw(buffer, "\xa4" "data", 5);
    gpt_put_bin(buffer, record->data.data, record->data.size);
    if (record->original.data) {
        gpt_put_raw(buffer, "\xa8" "original", 9);
        gpt_put_bin(buffer, record->original.data, record->original.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_fatbin {
    uint64_t id; // of the ptx record that it was made from
    struct gpt_str module; // as there
    struct { const struct gpt_str *items; size_t count; } archs; // compute capabilities of its cubins
    struct { const struct gpt_str *items; size_t count; } kernels; // entry functions
    struct gpt_bin data; // one region: the cubins, then the PTX
};

static inline size_t gpt_pack_fatbin(struct gpt_packer *buffer, const struct gpt_fatbin *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "fatbin", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "module", 7);
    gpt_put_str(buffer, record->module.data, record->module.size);
    gpt_put_raw(buffer, "\xa5" "archs", 6);
    gpt_put_array(buffer, record->archs.count);
    for (size_t i = 0; i < record->archs.count; i++)
        gpt_put_str(buffer, record->archs.items[i].data, record->archs.items[i].size);
    gpt_put_raw(buffer, "\xa7" "kernels", 8);
    gpt_put_array(buffer, record->kernels.count);
    for (size_t i = 0; i < record->kernels.count; i++)
        gpt_put_str(buffer, record->kernels.items[i].data, record->kernels.items[i].size);
    gpt_put_raw(buffer, "\xa4" "data", 5);
    gpt_put_bin(buffer, record->data.data, record->data.size);
    return gpt_finish(buffer, start);
}

struct gpt_kernel {
    uint64_t id; // of the ptx record that it is in; in a trace a number in the segment
    struct gpt_str name; // mangled name
    struct gpt_u64 function; // optional: in a trace: id of the function that it stands for
    struct { const struct gpt_param *items; size_t count; } params; // optional: its own parameters
    struct { const struct gpt_param *items; size_t count; } added; // optional: the parameters after them that probes need
    struct { const uint64_t *items; size_t count; } cluster; // optional: blocks of a cluster in x, y and z, where the grid of a launch counts clusters
    struct { const uint64_t *items; size_t count; } maps; // optional: ids of the maps that its probes save to
    struct { const struct gpt_site *items; size_t count; } sites; // optional: where its probes are
    struct { const struct gpt_variable *items; size_t count; } variables; // optional: variables of its module that it shares
    struct gpt_str table; // optional: variable of the probed module that takes the addresses of those in global memory
    struct gpt_u64 verified; // optional: 1 if its probes were proved harmless, 0 if that was not asked for
    struct gpt_str reason; // optional: why no probe is in it
    struct gpt_str arch; // optional: compute capability of the code that the numbers are about
    struct gpt_u64 registers; // optional: of a thread
    struct gpt_u64 spills; // optional: bytes that are spilled and filled again, added
    struct gpt_u64 stack; // optional: bytes of a thread's stack
    struct gpt_u64 shared; // optional: bytes of shared memory that it declares
    struct gpt_u64 constant; // optional: bytes of its own constant banks, parameters included
    struct gpt_u64 registers_before; // optional: the same without probes
    struct gpt_u64 spills_before; // optional: the same without probes
    struct gpt_u64 stack_before; // optional: the same without probes
    struct gpt_u64 shared_before; // optional: the same without probes
    struct gpt_u64 constant_before; // optional: the same without probes
};

static inline size_t gpt_pack_kernel(struct gpt_packer *buffer, const struct gpt_kernel *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3 + !!record->function.present + !!record->params.items + !!record->added.items + !!record->cluster.items + !!record->maps.items + !!record->sites.items + !!record->variables.items + !!record->table.data + !!record->verified.present + !!record->reason.data + !!record->arch.data + !!record->registers.present + !!record->spills.present + !!record->stack.present + !!record->shared.present + !!record->constant.present + !!record->registers_before.present + !!record->spills_before.present + !!record->stack_before.present + !!record->shared_before.present + !!record->constant_before.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "kernel", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    if (record->function.present) {
        gpt_put_raw(buffer, "\xa8" "function", 9);
        gpt_put_u64(buffer, record->function.value);
    }
    if (record->params.items) {
        gpt_put_raw(buffer, "\xa6" "params", 7);
        gpt_put_array(buffer, record->params.count);
        for (size_t i = 0; i < record->params.count; i++)
            gpt_put_param(buffer, &record->params.items[i]);
    }
    if (record->added.items) {
        gpt_put_raw(buffer, "\xa5" "added", 6);
        gpt_put_array(buffer, record->added.count);
        for (size_t i = 0; i < record->added.count; i++)
            gpt_put_param(buffer, &record->added.items[i]);
    }
    if (record->cluster.items) {
        gpt_put_raw(buffer, "\xa7" "cluster", 8);
        gpt_put_array(buffer, record->cluster.count);
        for (size_t i = 0; i < record->cluster.count; i++)
            gpt_put_u64(buffer, record->cluster.items[i]);
    }
    if (record->maps.items) {
        gpt_put_raw(buffer, "\xa4" "maps", 5);
        gpt_put_array(buffer, record->maps.count);
        for (size_t i = 0; i < record->maps.count; i++)
            gpt_put_u64(buffer, record->maps.items[i]);
    }
    if (record->sites.items) {
        gpt_put_raw(buffer, "\xa5" "sites", 6);
        gpt_put_array(buffer, record->sites.count);
        for (size_t i = 0; i < record->sites.count; i++)
            gpt_put_site(buffer, &record->sites.items[i]);
    }
    if (record->variables.items) {
        gpt_put_raw(buffer, "\xa9" "variables", 10);
        gpt_put_array(buffer, record->variables.count);
        for (size_t i = 0; i < record->variables.count; i++)
            gpt_put_variable(buffer, &record->variables.items[i]);
    }
    if (record->table.data) {
        gpt_put_raw(buffer, "\xa5" "table", 6);
        gpt_put_str(buffer, record->table.data, record->table.size);
    }
    if (record->verified.present) {
        gpt_put_raw(buffer, "\xa8" "verified", 9);
        gpt_put_u64(buffer, record->verified.value);
    }
    if (record->reason.data) {
        gpt_put_raw(buffer, "\xa6" "reason", 7);
        gpt_put_str(buffer, record->reason.data, record->reason.size);
    }
    if (record->arch.data) {
        gpt_put_raw(buffer, "\xa4" "arch", 5);
        gpt_put_str(buffer, record->arch.data, record->arch.size);
    }
    if (record->registers.present) {
        gpt_put_raw(buffer, "\xa9" "registers", 10);
        gpt_put_u64(buffer, record->registers.value);
    }
    if (record->spills.present) {
        gpt_put_raw(buffer, "\xa6" "spills", 7);
        gpt_put_u64(buffer, record->spills.value);
    }
    if (record->stack.present) {
        gpt_put_raw(buffer, "\xa5" "stack", 6);
        gpt_put_u64(buffer, record->stack.value);
    }
    if (record->shared.present) {
        gpt_put_raw(buffer, "\xa6" "shared", 7);
        gpt_put_u64(buffer, record->shared.value);
    }
    if (record->constant.present) {
        gpt_put_raw(buffer, "\xa8" "constant", 9);
        gpt_put_u64(buffer, record->constant.value);
    }
    if (record->registers_before.present) {
        gpt_put_raw(buffer, "\xb0" "registers_before", 17);
        gpt_put_u64(buffer, record->registers_before.value);
    }
    if (record->spills_before.present) {
        gpt_put_raw(buffer, "\xad" "spills_before", 14);
        gpt_put_u64(buffer, record->spills_before.value);
    }
    if (record->stack_before.present) {
        gpt_put_raw(buffer, "\xac" "stack_before", 13);
        gpt_put_u64(buffer, record->stack_before.value);
    }
    if (record->shared_before.present) {
        gpt_put_raw(buffer, "\xad" "shared_before", 14);
        gpt_put_u64(buffer, record->shared_before.value);
    }
    if (record->constant_before.present) {
        gpt_put_raw(buffer, "\xaf" "constant_before", 16);
        gpt_put_u64(buffer, record->constant_before.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_map {
    uint64_t id; // number in the segment
    struct gpt_str name; // as the probe file says it
    struct gpt_str type; // array, total or log
    struct gpt_str level; // thread, warp or block: a unit
    uint64_t capacity; // records of a unit, of a log all in all; 0 if they are counted only
    uint64_t stride; // bytes of a record
    struct { const struct gpt_field *items; size_t count; } fields; // layout of a record
    struct gpt_u64 wanted; // optional: of an array or total that is counted only: the capacity that it would have
    struct gpt_str callback; // optional: the file that its probe file wants to be run on each launch: an absolute path
    struct gpt_str keeps; // optional: last, of an array, or all, of a log: what it keeps if the lowest bits of its address say so
};

static inline size_t gpt_pack_map(struct gpt_packer *buffer, const struct gpt_map *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 8 + !!record->wanted.present + !!record->callback.data + !!record->keeps.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa3" "map", 4);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa5" "level", 6);
    gpt_put_str(buffer, record->level.data, record->level.size);
    gpt_put_raw(buffer, "\xa8" "capacity", 9);
    gpt_put_u64(buffer, record->capacity);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa6" "fields", 7);
    gpt_put_array(buffer, record->fields.count);
    for (size_t i = 0; i < record->fields.count; i++)
        gpt_put_field(buffer, &record->fields.items[i]);
    if (record->wanted.present) {
        gpt_put_raw(buffer, "\xa6" "wanted", 7);
        gpt_put_u64(buffer, record->wanted.value);
    }
    if (record->callback.data) {
        gpt_put_raw(buffer, "\xa8" "callback", 9);
        gpt_put_str(buffer, record->callback.data, record->callback.size);
    }
    if (record->keeps.data) {
        gpt_put_raw(buffer, "\xa5" "keeps", 6);
        gpt_put_str(buffer, record->keeps.data, record->keeps.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_clock {
    uint64_t monotonic; // CLOCK_MONOTONIC, ns
    uint64_t tsc; // the time stamp counter at the same moment
};

static inline size_t gpt_pack_clock(struct gpt_packer *buffer, const struct gpt_clock *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "clock", 6);
    gpt_put_raw(buffer, "\xa9" "monotonic", 10);
    gpt_put_u64(buffer, record->monotonic);
    gpt_put_raw(buffer, "\xa3" "tsc", 4);
    gpt_put_u64(buffer, record->tsc);
    return gpt_finish(buffer, start);
}

struct gpt_recording {
    bool on; // whether calls are recorded from here on
    uint64_t at; // time stamp
};

static inline size_t gpt_pack_recording(struct gpt_packer *buffer, const struct gpt_recording *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa9" "recording", 10);
    gpt_put_raw(buffer, "\xa2" "on", 3);
    gpt_put_bool(buffer, record->on);
    gpt_put_raw(buffer, "\xa2" "at", 3);
    gpt_put_u64(buffer, record->at);
    return gpt_finish(buffer, start);
}

struct gpt_dropped {
    uint64_t count; // how many
    struct gpt_str what; // of what: events, names of kernels
    struct gpt_str reason; // why they are not recorded
};

static inline size_t gpt_pack_dropped(struct gpt_packer *buffer, const struct gpt_dropped *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa7" "dropped", 8);
    gpt_put_raw(buffer, "\xa5" "count", 6);
    gpt_put_u64(buffer, record->count);
    gpt_put_raw(buffer, "\xa4" "what", 5);
    gpt_put_str(buffer, record->what.data, record->what.size);
    gpt_put_raw(buffer, "\xa6" "reason", 7);
    gpt_put_str(buffer, record->reason.data, record->reason.size);
    return gpt_finish(buffer, start);
}

struct gpt_api {
    uint64_t id; // number in the segment
    struct gpt_str symbol; // the driver function as the program asked for it
    struct gpt_str name; // without version and stream suffix
    struct gpt_str type; // context, memory, memcpy, memset, kernel, module, stream, event, sync, graph, device, capture or other
    struct gpt_str op; // what it does within its type: alloc, free, HtoD, launch, ...
};

static inline size_t gpt_pack_api(struct gpt_packer *buffer, const struct gpt_api *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa3" "api", 4);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "symbol", 7);
    gpt_put_str(buffer, record->symbol.data, record->symbol.size);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa2" "op", 3);
    gpt_put_str(buffer, record->op.data, record->op.size);
    return gpt_finish(buffer, start);
}

struct gpt_graph {
    uint64_t exec; // handle of the graph that can be launched
    uint64_t at; // time stamp: later launches of the handle mean this graph
    uint64_t nodes; // nodes, those of graphs inside it included
    struct { const uint64_t *items; size_t count; } functions; // ids of the functions that its kernel nodes launch
    struct { const uint64_t *items; size_t count; } launches; // how often each is launched; 0: as a condition says, or not at all
    struct { const struct gpt_operation *items; size_t count; } operations; // optional: what its other nodes do; absent if that is not known
    struct gpt_u64 unknown; // optional: nodes that run as often as a condition says: they count as 0 above
    struct gpt_u64 device; // optional: 1 if kernels may launch it too: how often is not known
};

static inline size_t gpt_pack_graph(struct gpt_packer *buffer, const struct gpt_graph *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 6 + !!record->operations.items + !!record->unknown.present + !!record->device.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "graph", 6);
    gpt_put_raw(buffer, "\xa4" "exec", 5);
    gpt_put_u64(buffer, record->exec);
    gpt_put_raw(buffer, "\xa2" "at", 3);
    gpt_put_u64(buffer, record->at);
    gpt_put_raw(buffer, "\xa5" "nodes", 6);
    gpt_put_u64(buffer, record->nodes);
    gpt_put_raw(buffer, "\xa9" "functions", 10);
    gpt_put_array(buffer, record->functions.count);
    for (size_t i = 0; i < record->functions.count; i++)
        gpt_put_u64(buffer, record->functions.items[i]);
    gpt_put_raw(buffer, "\xa8" "launches", 9);
    gpt_put_array(buffer, record->launches.count);
    for (size_t i = 0; i < record->launches.count; i++)
        gpt_put_u64(buffer, record->launches.items[i]);
    if (record->operations.items) {
        gpt_put_raw(buffer, "\xaa" "operations", 11);
        gpt_put_array(buffer, record->operations.count);
        for (size_t i = 0; i < record->operations.count; i++)
            gpt_put_operation(buffer, &record->operations.items[i]);
    }
    if (record->unknown.present) {
        gpt_put_raw(buffer, "\xa7" "unknown", 8);
        gpt_put_u64(buffer, record->unknown.value);
    }
    if (record->device.present) {
        gpt_put_raw(buffer, "\xa6" "device", 7);
        gpt_put_u64(buffer, record->device.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_launches {
    struct { const struct gpt_field *items; size_t count; } fields; // layout of a row
    uint64_t stride; // bytes of a row
    struct gpt_bin rows; // rows of zero bytes are padding
};

static inline size_t gpt_pack_launches(struct gpt_packer *buffer, const struct gpt_launches *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa8" "launches", 9);
    gpt_put_raw(buffer, "\xa6" "fields", 7);
    gpt_put_array(buffer, record->fields.count);
    for (size_t i = 0; i < record->fields.count; i++)
        gpt_put_field(buffer, &record->fields.items[i]);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa4" "rows", 5);
    gpt_put_bin(buffer, record->rows.data, record->rows.size);
    return gpt_finish(buffer, start);
}

struct gpt_counts {
    struct { const struct gpt_field *items; size_t count; } fields; // layout of a row
    uint64_t stride; // bytes of a row
    struct gpt_bin rows; // rows of zero bytes are padding
};

static inline size_t gpt_pack_counts(struct gpt_packer *buffer, const struct gpt_counts *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "counts", 7);
    gpt_put_raw(buffer, "\xa6" "fields", 7);
    gpt_put_array(buffer, record->fields.count);
    for (size_t i = 0; i < record->fields.count; i++)
        gpt_put_field(buffer, &record->fields.items[i]);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa4" "rows", 5);
    gpt_put_bin(buffer, record->rows.data, record->rows.size);
    return gpt_finish(buffer, start);
}

struct gpt_calls {
    uint64_t thread; // thread id
    struct { const struct gpt_field *items; size_t count; } fields; // layout of a row
    uint64_t stride; // bytes of a row
    struct gpt_bin rows; // packed little-endian rows; one whose first time is 0 was not finished, or is padding
};

static inline size_t gpt_pack_calls(struct gpt_packer *buffer, const struct gpt_calls *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "calls", 6);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    gpt_put_raw(buffer, "\xa6" "fields", 7);
    gpt_put_array(buffer, record->fields.count);
    for (size_t i = 0; i < record->fields.count; i++)
        gpt_put_field(buffer, &record->fields.items[i]);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa4" "rows", 5);
    gpt_put_bin(buffer, record->rows.data, record->rows.size);
    return gpt_finish(buffer, start);
}

struct gpt_stack {
    uint64_t id; // number in the segment
    struct { const struct gpt_frame *items; size_t count; } frames; // callers, the innermost first; the last may have others
};

static inline size_t gpt_pack_stack(struct gpt_packer *buffer, const struct gpt_stack *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "stack", 6);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "frames", 7);
    gpt_put_array(buffer, record->frames.count);
    for (size_t i = 0; i < record->frames.count; i++)
        gpt_put_frame(buffer, &record->frames.items[i]);
    return gpt_finish(buffer, start);
}

struct gpt_call_site {
    uint64_t thread; // thread id
    uint64_t start; // start of the row of the call
    uint64_t stack; // id of the stack that it came from
};

static inline size_t gpt_pack_call_site(struct gpt_packer *buffer, const struct gpt_call_site *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa9" "call_site", 10);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    gpt_put_raw(buffer, "\xa5" "start", 6);
    gpt_put_u64(buffer, record->start);
    gpt_put_raw(buffer, "\xa5" "stack", 6);
    gpt_put_u64(buffer, record->stack);
    return gpt_finish(buffer, start);
}

struct gpt_ioctl {
    uint64_t thread; // thread id
    struct gpt_u64 parent; // optional: start of the row of the driver call that it is part of
    struct gpt_str device; // /dev/nvidia...
    uint64_t request; // number of the ioctl
    struct gpt_str name; // of the escape, as NVIDIA's kernel modules name it; else the number
    struct gpt_u64 command; // optional: of NV_ESC_RM_CONTROL, class of NV_ESC_RM_ALLOC, escape of NV_ESC_IOCTL_XFER_CMD
    uint64_t start; // time stamp
    uint64_t duration; // as of time stamps
    struct gpt_u64 error; // optional: errno; absent if it worked
};

static inline size_t gpt_pack_ioctl(struct gpt_packer *buffer, const struct gpt_ioctl *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 7 + !!record->parent.present + !!record->command.present + !!record->error.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "ioctl", 6);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    if (record->parent.present) {
        gpt_put_raw(buffer, "\xa6" "parent", 7);
        gpt_put_u64(buffer, record->parent.value);
    }
    gpt_put_raw(buffer, "\xa6" "device", 7);
    gpt_put_str(buffer, record->device.data, record->device.size);
    gpt_put_raw(buffer, "\xa7" "request", 8);
    gpt_put_u64(buffer, record->request);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    if (record->command.present) {
        gpt_put_raw(buffer, "\xa7" "command", 8);
        gpt_put_u64(buffer, record->command.value);
    }
    gpt_put_raw(buffer, "\xa5" "start", 6);
    gpt_put_u64(buffer, record->start);
    gpt_put_raw(buffer, "\xa8" "duration", 9);
    gpt_put_u64(buffer, record->duration);
    if (record->error.present) {
        gpt_put_raw(buffer, "\xa5" "error", 6);
        gpt_put_u64(buffer, record->error.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_range {
    struct gpt_u64 id; // optional: number in the process, for its range_end; absent for a mark
    struct gpt_str type; // push, start or mark
    uint64_t thread; // thread id
    struct gpt_str domain; // optional: of NVTX; absent for the default one
    struct gpt_str name; // optional: what the program calls it
    struct gpt_u64 category; // optional: of NVTX; absent for none
    uint64_t start; // time stamp
};

static inline size_t gpt_pack_range(struct gpt_packer *buffer, const struct gpt_range *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4 + !!record->id.present + !!record->domain.data + !!record->name.data + !!record->category.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "range", 6);
    if (record->id.present) {
        gpt_put_raw(buffer, "\xa2" "id", 3);
        gpt_put_u64(buffer, record->id.value);
    }
    gpt_put_raw(buffer, "\xa4" "type", 5);
    gpt_put_str(buffer, record->type.data, record->type.size);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    if (record->domain.data) {
        gpt_put_raw(buffer, "\xa6" "domain", 7);
        gpt_put_str(buffer, record->domain.data, record->domain.size);
    }
    if (record->name.data) {
        gpt_put_raw(buffer, "\xa4" "name", 5);
        gpt_put_str(buffer, record->name.data, record->name.size);
    }
    if (record->category.present) {
        gpt_put_raw(buffer, "\xa8" "category", 9);
        gpt_put_u64(buffer, record->category.value);
    }
    gpt_put_raw(buffer, "\xa5" "start", 6);
    gpt_put_u64(buffer, record->start);
    return gpt_finish(buffer, start);
}

struct gpt_range_end {
    uint64_t id; // of the range; one that began before a fork is in the trace of the parent
    uint64_t thread; // thread id
    uint64_t end; // time stamp
};

static inline size_t gpt_pack_range_end(struct gpt_packer *buffer, const struct gpt_range_end *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa9" "range_end", 10);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    gpt_put_raw(buffer, "\xa3" "end", 4);
    gpt_put_u64(buffer, record->end);
    return gpt_finish(buffer, start);
}

struct gpt_tensor {
    uint64_t id; // number in the segment; the same under another name
    uint64_t at; // time stamp: it was there, by this name
    uint64_t thread; // thread id
    struct gpt_str name; // of the variable that held it
    uint64_t address; // of its lowest byte
    uint64_t bytes; // from there to the end of its highest
    struct gpt_u64 first; // optional: address of its first element, where that is not the lowest
    struct gpt_str dtype; // type of an element, as the program's library names it
    struct { const uint64_t *items; size_t count; } shape; // elements in each dimension
    struct gpt_str function; // optional: whose variable it was
    struct gpt_str file; // optional: source file of the function
    struct gpt_u64 line; // optional: that was being run
};

static inline size_t gpt_pack_tensor(struct gpt_packer *buffer, const struct gpt_tensor *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 9 + !!record->first.present + !!record->function.data + !!record->file.data + !!record->line.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "tensor", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa2" "at", 3);
    gpt_put_u64(buffer, record->at);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa7" "address", 8);
    gpt_put_u64(buffer, record->address);
    gpt_put_raw(buffer, "\xa5" "bytes", 6);
    gpt_put_u64(buffer, record->bytes);
    if (record->first.present) {
        gpt_put_raw(buffer, "\xa5" "first", 6);
        gpt_put_u64(buffer, record->first.value);
    }
    gpt_put_raw(buffer, "\xa5" "dtype", 6);
    gpt_put_str(buffer, record->dtype.data, record->dtype.size);
    gpt_put_raw(buffer, "\xa5" "shape", 6);
    gpt_put_array(buffer, record->shape.count);
    for (size_t i = 0; i < record->shape.count; i++)
        gpt_put_u64(buffer, record->shape.items[i]);
    if (record->function.data) {
        gpt_put_raw(buffer, "\xa8" "function", 9);
        gpt_put_str(buffer, record->function.data, record->function.size);
    }
    if (record->file.data) {
        gpt_put_raw(buffer, "\xa4" "file", 5);
        gpt_put_str(buffer, record->file.data, record->file.size);
    }
    if (record->line.present) {
        gpt_put_raw(buffer, "\xa4" "line", 5);
        gpt_put_u64(buffer, record->line.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_tensor_end {
    uint64_t id; // of the tensor
    uint64_t at; // time stamp: the program gave it up
};

static inline size_t gpt_pack_tensor_end(struct gpt_packer *buffer, const struct gpt_tensor_end *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xaa" "tensor_end", 11);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa2" "at", 3);
    gpt_put_u64(buffer, record->at);
    return gpt_finish(buffer, start);
}

struct gpt_gpu_times {
    struct { const struct gpt_field *items; size_t count; } fields; // layout of a row
    uint64_t stride; // bytes of a row
    struct gpt_bin rows; // packed little-endian rows; one whose first time is 0 was not finished, or is padding
};

static inline size_t gpt_pack_gpu_times(struct gpt_packer *buffer, const struct gpt_gpu_times *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa9" "gpu_times", 10);
    gpt_put_raw(buffer, "\xa6" "fields", 7);
    gpt_put_array(buffer, record->fields.count);
    for (size_t i = 0; i < record->fields.count; i++)
        gpt_put_field(buffer, &record->fields.items[i]);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa4" "rows", 5);
    gpt_put_bin(buffer, record->rows.data, record->rows.size);
    return gpt_finish(buffer, start);
}

struct gpt_probed {
    uint64_t id; // number in the segment
    uint64_t kernel; // id of the kernel record
    uint64_t function; // id of the function that the program launched
    uint64_t thread; // thread id
    uint64_t start; // time stamp of the call
    uint64_t device; // ordinal in the process
    uint64_t stream; // handle
    struct { const uint64_t *items; size_t count; } grid; // blocks in x, y and z
    struct { const uint64_t *items; size_t count; } block; // threads of a block in x, y and z
    uint64_t shared; // bytes of dynamic shared memory
    struct gpt_bin params; // optional: its own parameters, as the kernel got them
    struct gpt_u64 exec; // optional: handle of the executable graph that launched it
    struct gpt_u64 node; // optional: handle of its node in the graph that this was made from, or updated from
    struct gpt_u64 repeats; // optional: 1 in the body of a conditional node: buffers are of all its runs, or of none
};

static inline size_t gpt_pack_probed(struct gpt_packer *buffer, const struct gpt_probed *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 11 + !!record->params.data + !!record->exec.present + !!record->node.present + !!record->repeats.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "probed", 7);
    gpt_put_raw(buffer, "\xa2" "id", 3);
    gpt_put_u64(buffer, record->id);
    gpt_put_raw(buffer, "\xa6" "kernel", 7);
    gpt_put_u64(buffer, record->kernel);
    gpt_put_raw(buffer, "\xa8" "function", 9);
    gpt_put_u64(buffer, record->function);
    gpt_put_raw(buffer, "\xa6" "thread", 7);
    gpt_put_u64(buffer, record->thread);
    gpt_put_raw(buffer, "\xa5" "start", 6);
    gpt_put_u64(buffer, record->start);
    gpt_put_raw(buffer, "\xa6" "device", 7);
    gpt_put_u64(buffer, record->device);
    gpt_put_raw(buffer, "\xa6" "stream", 7);
    gpt_put_u64(buffer, record->stream);
    gpt_put_raw(buffer, "\xa4" "grid", 5);
    gpt_put_array(buffer, record->grid.count);
    for (size_t i = 0; i < record->grid.count; i++)
        gpt_put_u64(buffer, record->grid.items[i]);
    gpt_put_raw(buffer, "\xa5" "block", 6);
    gpt_put_array(buffer, record->block.count);
    for (size_t i = 0; i < record->block.count; i++)
        gpt_put_u64(buffer, record->block.items[i]);
    gpt_put_raw(buffer, "\xa6" "shared", 7);
    gpt_put_u64(buffer, record->shared);
    if (record->params.data) {
        gpt_put_raw(buffer, "\xa6" "params", 7);
        gpt_put_bin(buffer, record->params.data, record->params.size);
    }
    if (record->exec.present) {
        gpt_put_raw(buffer, "\xa4" "exec", 5);
        gpt_put_u64(buffer, record->exec.value);
    }
    if (record->node.present) {
        gpt_put_raw(buffer, "\xa4" "node", 5);
        gpt_put_u64(buffer, record->node.value);
    }
    if (record->repeats.present) {
        gpt_put_raw(buffer, "\xa7" "repeats", 8);
        gpt_put_u64(buffer, record->repeats.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_buffer {
    uint64_t launch; // id of the probed record
    uint64_t map; // id of its map
    uint64_t size; // bytes of the whole buffer
    struct gpt_u64 at; // optional: the first of them that this record holds; absent for 0
    struct gpt_u64 length; // optional: how many it holds; absent for all
    struct gpt_u64 units; // optional: those of its units that are written, each after its number; the others are zero
    struct gpt_str codec; // optional: zstd, if what is written is a frame of that; neutrino, if it is of a result of Neutrino
    struct gpt_str path; // optional: the file that it is written to, in the folder of the trace
    struct gpt_u64 offset; // optional: where it begins in that file
    struct gpt_u64 packed; // optional: bytes of the frame in that file
    struct gpt_u64 entries; // optional: of a log, in its first record: how many it holds
    struct gpt_u64 dropped; // optional: of a log, in its first record: how many did not fit; absent for none
    struct gpt_bin data; // optional: what is written, where it is in no file
    struct gpt_str lost; // optional: why the buffer is nowhere
};

static inline size_t gpt_pack_buffer(struct gpt_packer *buffer, const struct gpt_buffer *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4 + !!record->at.present + !!record->length.present + !!record->units.present + !!record->codec.data + !!record->path.data + !!record->offset.present + !!record->packed.present + !!record->entries.present + !!record->dropped.present + !!record->data.data + !!record->lost.data);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "buffer", 7);
    gpt_put_raw(buffer, "\xa6" "launch", 7);
    gpt_put_u64(buffer, record->launch);
    gpt_put_raw(buffer, "\xa3" "map", 4);
    gpt_put_u64(buffer, record->map);
    gpt_put_raw(buffer, "\xa4" "size", 5);
    gpt_put_u64(buffer, record->size);
    if (record->at.present) {
        gpt_put_raw(buffer, "\xa2" "at", 3);
        gpt_put_u64(buffer, record->at.value);
    }
    if (record->length.present) {
        gpt_put_raw(buffer, "\xa6" "length", 7);
        gpt_put_u64(buffer, record->length.value);
    }
    if (record->units.present) {
        gpt_put_raw(buffer, "\xa5" "units", 6);
        gpt_put_u64(buffer, record->units.value);
    }
    if (record->codec.data) {
        gpt_put_raw(buffer, "\xa5" "codec", 6);
        gpt_put_str(buffer, record->codec.data, record->codec.size);
    }
    if (record->path.data) {
        gpt_put_raw(buffer, "\xa4" "path", 5);
        gpt_put_str(buffer, record->path.data, record->path.size);
    }
    if (record->offset.present) {
        gpt_put_raw(buffer, "\xa6" "offset", 7);
        gpt_put_u64(buffer, record->offset.value);
    }
    if (record->packed.present) {
        gpt_put_raw(buffer, "\xa6" "packed", 7);
        gpt_put_u64(buffer, record->packed.value);
    }
    if (record->entries.present) {
        gpt_put_raw(buffer, "\xa7" "entries", 8);
        gpt_put_u64(buffer, record->entries.value);
    }
    if (record->dropped.present) {
        gpt_put_raw(buffer, "\xa7" "dropped", 8);
        gpt_put_u64(buffer, record->dropped.value);
    }
    if (record->data.data) {
        gpt_put_raw(buffer, "\xa4" "data", 5);
        gpt_put_bin(buffer, record->data.data, record->data.size);
    }
    if (record->lost.data) {
        gpt_put_raw(buffer, "\xa4" "lost", 5);
        gpt_put_str(buffer, record->lost.data, record->lost.size);
    }
    return gpt_finish(buffer, start);
}

struct gpt_times {
    uint64_t launch; // id of the probed record
    uint64_t prologue; // ns that the launch was held up for buffers, parameters and constants
    uint64_t epilogue; // ns that the thread which writes took for its buffers
    struct gpt_u64 kernel; // optional: ns of the kernel with probes on the GPU, with --benchmark
    struct gpt_u64 original; // optional: ns of the kernel without probes, assembled alike
};

static inline size_t gpt_pack_times(struct gpt_packer *buffer, const struct gpt_times *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4 + !!record->kernel.present + !!record->original.present);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "times", 6);
    gpt_put_raw(buffer, "\xa6" "launch", 7);
    gpt_put_u64(buffer, record->launch);
    gpt_put_raw(buffer, "\xa8" "prologue", 9);
    gpt_put_u64(buffer, record->prologue);
    gpt_put_raw(buffer, "\xa8" "epilogue", 9);
    gpt_put_u64(buffer, record->epilogue);
    if (record->kernel.present) {
        gpt_put_raw(buffer, "\xa6" "kernel", 7);
        gpt_put_u64(buffer, record->kernel.value);
    }
    if (record->original.present) {
        gpt_put_raw(buffer, "\xa8" "original", 9);
        gpt_put_u64(buffer, record->original.value);
    }
    return gpt_finish(buffer, start);
}

struct gpt_memusage {
    uint64_t function; // id of the function
    uint64_t launches; // how many of it
    uint64_t bytes; // what their buffers would need, added
    uint64_t most; // bytes of the launch that would need most
};

static inline size_t gpt_pack_memusage(struct gpt_packer *buffer, const struct gpt_memusage *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 5);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa8" "memusage", 9);
    gpt_put_raw(buffer, "\xa8" "function", 9);
    gpt_put_u64(buffer, record->function);
    gpt_put_raw(buffer, "\xa8" "launches", 9);
    gpt_put_u64(buffer, record->launches);
    gpt_put_raw(buffer, "\xa5" "bytes", 6);
    gpt_put_u64(buffer, record->bytes);
    gpt_put_raw(buffer, "\xa4" "most", 5);
    gpt_put_u64(buffer, record->most);
    return gpt_finish(buffer, start);
}

struct gpt_unprobed {
    uint64_t function; // id of the function
    uint64_t launches; // how many ran without probes for this reason
    struct gpt_str reason; // why
};

static inline size_t gpt_pack_unprobed(struct gpt_packer *buffer, const struct gpt_unprobed *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 4);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa8" "unprobed", 9);
    gpt_put_raw(buffer, "\xa8" "function", 9);
    gpt_put_u64(buffer, record->function);
    gpt_put_raw(buffer, "\xa8" "launches", 9);
    gpt_put_u64(buffer, record->launches);
    gpt_put_raw(buffer, "\xa6" "reason", 7);
    gpt_put_str(buffer, record->reason.data, record->reason.size);
    return gpt_finish(buffer, start);
}

struct gpt_answer {
    struct gpt_str name; // what it is about: processes, functions, copies, kernels
    struct { const struct gpt_column *items; size_t count; } columns; // values of a row, in order
    uint64_t stride; // bytes of a row
    struct { const struct gpt_str *items; size_t count; } texts; // what the values in columns of text and of numbers stand for, from 0
    struct gpt_bin rows; // packed little-endian rows; none is padding
    struct gpt_u64 top; // optional: rows that a table for people shows, of many; absent for all
    struct { const struct gpt_str *items; size_t count; } verdict; // what follows from the rows, or limits what they say: a line each
    struct { const struct gpt_str *items; size_t count; } incomplete; // optional: what of the input is missing: a line each; absent if nothing is
    struct { const struct gpt_plot *items; size_t count; } plots; // optional: how it is drawn; absent if nothing says so
};

static inline size_t gpt_pack_answer(struct gpt_packer *buffer, const struct gpt_answer *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 7 + !!record->top.present + !!record->incomplete.items + !!record->plots.items);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa6" "answer", 7);
    gpt_put_raw(buffer, "\xa4" "name", 5);
    gpt_put_str(buffer, record->name.data, record->name.size);
    gpt_put_raw(buffer, "\xa7" "columns", 8);
    gpt_put_array(buffer, record->columns.count);
    for (size_t i = 0; i < record->columns.count; i++)
        gpt_put_column(buffer, &record->columns.items[i]);
    gpt_put_raw(buffer, "\xa6" "stride", 7);
    gpt_put_u64(buffer, record->stride);
    gpt_put_raw(buffer, "\xa5" "texts", 6);
    gpt_put_array(buffer, record->texts.count);
    for (size_t i = 0; i < record->texts.count; i++)
        gpt_put_str(buffer, record->texts.items[i].data, record->texts.items[i].size);
    gpt_put_raw(buffer, "\xa4" "rows", 5);
    gpt_put_bin(buffer, record->rows.data, record->rows.size);
    if (record->top.present) {
        gpt_put_raw(buffer, "\xa3" "top", 4);
        gpt_put_u64(buffer, record->top.value);
    }
    gpt_put_raw(buffer, "\xa7" "verdict", 8);
    gpt_put_array(buffer, record->verdict.count);
    for (size_t i = 0; i < record->verdict.count; i++)
        gpt_put_str(buffer, record->verdict.items[i].data, record->verdict.items[i].size);
    if (record->incomplete.items) {
        gpt_put_raw(buffer, "\xaa" "incomplete", 11);
        gpt_put_array(buffer, record->incomplete.count);
        for (size_t i = 0; i < record->incomplete.count; i++)
            gpt_put_str(buffer, record->incomplete.items[i].data, record->incomplete.items[i].size);
    }
    if (record->plots.items) {
        gpt_put_raw(buffer, "\xa5" "plots", 6);
        gpt_put_array(buffer, record->plots.count);
        for (size_t i = 0; i < record->plots.count; i++)
            gpt_put_plot(buffer, &record->plots.items[i]);
    }
    return gpt_finish(buffer, start);
}

struct gpt_chunk {
    uint64_t used; // bytes of data that hold records
    struct gpt_bin data; // whole records; zero bytes between them are padding
};

static inline size_t gpt_pack_chunk(struct gpt_packer *buffer, const struct gpt_chunk *record) {
    unsigned char *start = buffer->at;
    gpt_put_map(buffer, 3);
    gpt_put_raw(buffer, "\xa4" "kind", 5);
    gpt_put_raw(buffer, "\xa5" "chunk", 6);
    gpt_put_raw(buffer, "\xa4" "used", 5);
    gpt_put_u64(buffer, record->used);
    gpt_put_raw(buffer, "\xa4" "data", 5);
    gpt_put_bin(buffer, record->data.data, record->data.size);
    return gpt_finish(buffer, start);
}

#endif
