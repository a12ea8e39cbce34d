// The payload extension of NVTX: ranges and marks with data in a form that the program registers, a schema. A
// library may push a range without the extension and pop it with it, as NCCL does. We record only the message
// in the data, if a schema says which entry that is and its position is known. Data at the end of a range
// isn't recorded.

#include <stdatomic.h>
#include <string.h>

#include "watch.h"

enum { SCHEMAS = 256, ENTRIES = 4096, PAYLOADS = 64 };
enum { PLACE = 0xfe }; // flags of an entry: pointers, offsets, arrays

// The position of the message in a schema's data.
struct message {
    const void *domain;
    uint64_t id;                 // the schema's id
    uint64_t type, offset, room; // bytes of a text that lies in the data; 0 for a pointer or a handle
    size_t size;                 // bytes of the data; 0 if unknown
};

static struct {
    struct message message;
    atomic_bool known;
} schemas[SCHEMAS];
static _Atomic size_t taken; // may exceed SCHEMAS

static _Atomic uint64_t ids = NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START;

static const struct message *find_message(const void *domain, uint64_t id) {
    size_t count = atomic_load_explicit(&taken, memory_order_relaxed);
    for (size_t i = 0; i < count && i < SCHEMAS; i++)
        if (atomic_load(&schemas[i].known) && schemas[i].message.id == id &&
            schemas[i].message.domain == domain)
            return &schemas[i].message;
    return NULL;
}

// Return the size of an entry with a fixed size, or 0.
static unsigned size_of(const nvtxPayloadSchemaEntry_t *entry) {
    static const unsigned char sizes[] = {
        0,
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        8,
        8,
        8,
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        8,
        4,
        8,
        sizeof(long double),
        8,
        8,
        4,
        1,
        2,
        4,
        [NVTX_PAYLOAD_ENTRY_TYPE_CSTRING] = 8,
        [NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8] = 8,
        [NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32] = 8,
        [NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE] = 8,
    };
    bool array = entry->flags & PLACE || entry->arrayOrUnionDetail;
    return array || entry->type >= sizeof(sizes) ? 0 : sizes[entry->type];
}

// Find out how to read a message from such an entry. Returns false if we can't.
static bool read_entry(struct message *message, const nvtxPayloadSchemaEntry_t *entry) {
    uint64_t array = entry->flags & PLACE, room = entry->arrayOrUnionDetail;
    bool narrow =
        entry->type == NVTX_PAYLOAD_ENTRY_TYPE_CSTRING || entry->type == NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8;
    message->type = entry->type;
    if (narrow && ((room && (!array || array == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE)) ||
                   (!room && array == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED))) {
        message->room = room ? room : SIZE_MAX;
        return true;
    }
    message->room = 0;
    return entry->type >= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING && size_of(entry) == sizeof(void *);
}

static bool find_entry(struct message *message, const nvtxPayloadSchemaAttr_t *schema) {
    const uint64_t needed = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                            NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES;
    if (!schema || (schema->fieldMask & needed) != needed || !schema->entries ||
        (schema->type != NVTX_PAYLOAD_SCHEMA_TYPE_STATIC && schema->type != NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC))
        return false;
    bool packed = schema->fieldMask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT && schema->packAlign;
    bool sized = schema->fieldMask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
    bool placed = true; // we know the position of an entry without an offset
    uint64_t at = 0;
    for (size_t i = 0; i < schema->numEntries && i < ENTRIES; i++) {
        const nvtxPayloadSchemaEntry_t *entry = &schema->entries[i];
        unsigned size = size_of(entry), align = size ? size : 1;
        if (entry->offset)
            at = entry->offset;
        else
            at += (align - at % align) % align;
        placed |= entry->offset != 0;
        if (entry->flags & NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE) {
            message->offset = at;
            message->size = sized ? schema->payloadStaticSize : 0;
            return placed && read_entry(message, entry);
        }
        placed &= size && !packed;
        at += size;
    }
    return false;
}

static void know(const void *domain, uint64_t id, const nvtxPayloadSchemaAttr_t *schema) {
    struct message message = {.domain = domain, .id = id};
    if (!id || !find_entry(&message, schema) || find_message(domain, id))
        return;
    size_t at = atomic_load(&taken) < SCHEMAS ? atomic_fetch_add(&taken, 1) : SCHEMAS;
    if (at >= SCHEMAS)
        return;
    schemas[at].message = message;
    atomic_store(&schemas[at].known, true);
}

static void read_message(struct nvtx_name *name, const struct message *message,
                         const nvtxPayloadData_t *payload) {
    size_t size = payload->size == SIZE_MAX ? message->size : payload->size;
    if (!payload->payload || message->offset >= size)
        return;
    const char *at = (const char *)payload->payload + message->offset, *value;
    size_t left = size - message->offset;
    if (message->room) {
        size_t room = message->room < left ? message->room : left;
        name->text = (struct gpt_str){at, strnlen(at, room < NVTX_NAME_MAX ? room : NVTX_NAME_MAX)};
        return;
    }
    if (left < sizeof(value))
        return;
    memcpy(&value, at, sizeof(value));
    if (message->type == NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE)
        hook_nvtx_take(name, hook_nvtx_read_handle(value));
    else if (message->type == NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32)
        hook_nvtx_narrow(name, (const wchar_t *)(const void *)value);
    else
        hook_nvtx_take(name, value);
}

void hook_nvtx_read_payload(struct nvtx_name *name, const char *domain, const nvtxPayloadData_t *payloads,
                            size_t count) {
    name->text = (struct gpt_str){NULL, 0};
    for (size_t i = 0; payloads && i < count && i < PAYLOADS && !name->text.data; i++) {
        const struct message *message = find_message(domain, payloads[i].schemaId);
        if (message)
            read_message(name, message, &payloads[i]);
    }
}

// Functions of the extension

#define PAYLOAD(id) hook_nvtx_payload[NVTX3EXT_CBID_nvtx##id]

// Return an id; the program may choose one itself.
static uint64_t choose_id(bool chosen, uint64_t id) {
    bool good = id >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START && id < NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START;
    return chosen && good ? id : atomic_fetch_add(&ids, 1);
}

static uint64_t register_schema(const char *domain, const nvtxPayloadSchemaAttr_t *schema) {
    uint64_t id = 0;
    if (PAYLOAD(PayloadSchemaRegister))
        id = NVTX_CALL(uint64_t, PAYLOAD(PayloadSchemaRegister), domain, schema);
    else if (schema)
        id = choose_id(schema->fieldMask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID, schema->schemaId);
    know(domain, id, schema);
    return id;
}

static uint64_t choose_enum_id(const nvtxPayloadEnumAttr_t *values) {
    return values ? choose_id(values->fieldMask & NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID, values->schemaId)
                  : 0;
}

static uint64_t register_enum(const char *domain, const nvtxPayloadEnumAttr_t *values) {
    NVTX_PASS(uint64_t, PAYLOAD(PayloadEnumRegister), choose_enum_id(values), domain, values);
}

static void mark(const char *domain, const nvtxPayloadData_t *payloads, size_t count) {
    struct nvtx_name name;
    hook_nvtx_read_payload(&name, domain, payloads, count);
    hook_nvtx_mark(domain, NULL, name.text);
    NVTX_TELL(PAYLOAD(MarkPayload), domain, payloads, count);
}

static int push(const char *domain, const nvtxPayloadData_t *payloads, size_t count) {
    struct nvtx_name name;
    hook_nvtx_read_payload(&name, domain, payloads, count);
    NVTX_PASS(int, PAYLOAD(RangePushPayload), hook_nvtx_push(domain, NULL, name.text), domain, payloads,
              count);
}

static int pop(const char *domain, const nvtxPayloadData_t *payloads, size_t count) {
    NVTX_PASS(int, PAYLOAD(RangePopPayload), hook_nvtx_pop(domain), domain, payloads, count);
}

static uint64_t start(const char *domain, const nvtxPayloadData_t *payloads, size_t count) {
    struct nvtx_name name;
    hook_nvtx_read_payload(&name, domain, payloads, count);
    NVTX_STARTED(PAYLOAD(RangeStartPayload), hook_nvtx_start(domain, NULL, name.text), domain, payloads,
                 count);
}

static void end(const char *domain, uint64_t id, const nvtxPayloadData_t *payloads, size_t count) {
    hook_nvtx_end_started(id);
    NVTX_TELL(PAYLOAD(RangeEndPayload), domain, id, payloads, count);
}

// This is NVTX's answer for a tool without this function.
static uint8_t is_enabled(const char *domain) { NVTX_PASS(uint8_t, PAYLOAD(DomainIsEnabled), 1, domain); }

#define OURS(function) ((nvtx_function *)(function))
static nvtx_function *const ours[NVTX_SLOTS] = {
    [NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = OURS(register_schema),
    [NVTX3EXT_CBID_nvtxPayloadEnumRegister] = OURS(register_enum),
    [NVTX3EXT_CBID_nvtxMarkPayload] = OURS(mark),
    [NVTX3EXT_CBID_nvtxRangePushPayload] = OURS(push),
    [NVTX3EXT_CBID_nvtxRangePopPayload] = OURS(pop),
    [NVTX3EXT_CBID_nvtxRangeStartPayload] = OURS(start),
    [NVTX3EXT_CBID_nvtxRangeEndPayload] = OURS(end),
    [NVTX3EXT_CBID_nvtxDomainIsEnabled] = OURS(is_enabled),
};

int hook_nvtx_begin_extension(nvtxExtModuleInfo_t *module, nvtx_initialize_extension *other, bool wanted) {
    return hook_nvtx_extend(module, other, wanted, ours);
}
