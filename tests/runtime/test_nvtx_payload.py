"""NVTX's payload extension, from a program that imitates NVTX, and from NVIDIA's headers."""

from __future__ import annotations

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import Trace
from tests.runtime.ranges import ABI, told

# A program that does what NVTX's own code does: set up the core first, then the extension, whose slots it passes on.
PLAYED = r"""
#include <stddef.h>
#include <sys/mman.h>
#include "abi/nvtx.h"
#define E(name, type, ...) ((type (*)())slots[NVTX3EXT_CBID_nvtx##name])(__VA_ARGS__)
#define F(name, type, ...) ((type (*)())core2[NVTX_CBID_CORE2_##name])(__VA_ARGS__)
static nvtx_function *core[16], *core2[16], **at[16], **at2[16];
static intptr_t slots[63];
static nvtxExtModuleSegment_t segment = {0, 63, slots};
static nvtxExtModuleInfo_t module = {3, sizeof(module), 2, 0x0103, 1, &segment, 0, 0};
static int get_table(int module, nvtx_function ****table, unsigned *size) {
    *table = module == NVTX_CB_MODULE_CORE ? at : at2, *size = 16;
    return 1;
}
static const void *get_export(uint32_t id) {
    static const NvtxExportTableCallbacks callbacks = {sizeof(callbacks), get_table};
    return id == NVTX_ETID_CALLBACKS ? &callbacks : 0;
}
enum { ALL = 4 | 16 | 32, POINTER = 2, FIXED = 16, ENDED = 32, MESSAGE = 1024, WIDE = 78, HANDLE = 80 };
static uint64_t schema(void *domain, uint64_t count, const nvtxPayloadSchemaEntry_t *entries) {
    nvtxPayloadSchemaAttr_t attr = {ALL, 0, 1, 0, entries, count, 0, 0, 0, 0};
    return E(PayloadSchemaRegister, uint64_t, domain, &attr);
}
int main(void) {
    for (int i = 0; i < 16; i++)
        at[i] = &core[i], at2[i] = &core2[i];
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    int (*initialize)(nvtx_get_export_table *) = dlsym(library, "InitializeInjectionNvtx2");
    int (*extend)(nvtxExtModuleInfo_t *) = dlsym(library, "InitializeInjectionNvtxExtension");
    assert(initialize(get_export) == 1 && extend);
    F(DomainMarkEx, void, (void *)0, (void *)0);
    MORE
}
"""
BEGUN = "assert(extend(&module) == 1);"


def client(tmp_path, more):
    flags = [f"-I{ABI.parents[1]}", "-Wno-unused", "-Wno-missing-field-initializers"]
    return hooked.compile_c(tmp_path / "client", PLAYED.replace("MORE", more), *flags)


def played(tmp_path, more) -> Trace:
    done = hooked.run(tmp_path / "t.mp", client(tmp_path, more))
    assert (done.returncode, done.stderr) == (0, "")
    return Trace(tmp_path / "t.mp")


BEGAN = ("mark", None, None)


def test_ranges_that_are_popped_with_a_payload_end(tmp_path):
    """NCCL's ranges are pushed by NVTX and popped by the extension, whose own ranges and marks are also tested."""
    more = (
        BEGUN
        + r"""
    void *domain = F(DomainCreateA, void *, "NCCL");
    nvtxEventAttributes_t event = {3, sizeof(event), 0, 0, 0, 0, 0, 0, NVTX_MESSAGE_TYPE_ASCII, "init"};
    uint64_t size = 7;
    nvtxPayloadSchemaEntry_t one = {0, 18, "size", 0, 0, 0, 0, 0};
    nvtxPayloadData_t data = {schema(domain, 1, &one), 8, &size};
    assert(data.schemaId >= 1ull << 32 && E(DomainIsEnabled, uint8_t, domain) == 1);
    assert(F(DomainRangePushEx, int, domain, &event) == 0 && E(RangePopPayload, int, domain, &data, (size_t)1) == 0);
    assert(E(RangePushPayload, int, domain, &data, (size_t)1) == 0);
    assert(E(RangePushPayload, int, (void *)0, (void *)0, (size_t)9) == 0);
    assert(E(RangePushPayload, int, domain, (void *)0, (size_t)0) == 1 && F(DomainRangePop, int, domain) == 1);
    assert(E(RangePopPayload, int, (void *)0, (void *)0, (size_t)9) == 0);
    assert(E(RangePopPayload, int, domain, &data, (size_t)1) == 0);
    assert(E(RangePopPayload, int, domain, &data, (size_t)1) == -1);
    uint64_t first = E(RangeStartPayload, uint64_t, domain, &data, (size_t)1), second;
    second = F(DomainRangeStartEx, uint64_t, domain, &event);
    E(RangeEndPayload, void, domain, second, &data, (size_t)1), F(DomainRangeEnd, void, domain, first);
    E(MarkPayload, void, domain, &data, (size_t)1);
    for (int i = 8; i < 63; i++)
        assert(!slots[i]);
    """
    )
    trace = played(tmp_path, more)
    bare = ("NCCL", None)
    assert told(trace) == [
        BEGAN, ("push", "NCCL", "init"), ("end", "NCCL", "init"),
        ("push", *bare), ("push", None, None), ("push", *bare), ("end", *bare), ("end", None, None), ("end", *bare),
        ("start", *bare), ("start", "NCCL", "init"), ("end", "NCCL", "init"), ("end", *bare), ("mark", *bare),
    ]  # fmt: skip


# Message -> entries of the schema, fields and values of the payload, as C.
MESSAGES = {
    "pointer": ('{MESSAGE, 75}', "char *a", '"pointer"'),
    "utf8": ('{0, 5}, {MESSAGE, 76}', "int a; char *b", '3, "utf8"'),
    "wide": ('{0, 11}, {0, 13}, {MESSAGE, WIDE}', "char a; short b; wchar_t *c", '1, 2, L"wide"'),
    "handle": ('{0, 18}, {MESSAGE, HANDLE}', "long a; void *b", '1, text'),
    "placed": ('{FIXED, 5, 0, 0, 3}, {MESSAGE, 75, 0, 0, 0, 16}', "int a[4]; char *b", '{0}, "placed"'),
    "fixed": ('{0, 1}, {MESSAGE, 75, 0, 0, 8}', "char a, b[8]", "'x', \"fixed\""),
    "full": ('{MESSAGE | FIXED, 75, 0, 0, 4}', "char a[8]", '"fullness"'),
    "ended": ('{0, 10}, {MESSAGE | ENDED, 75}', "long a; char b[100]", '1, "ended"'),
}  # fmt: skip
UNKNOWN = {
    "not placed": ('{FIXED, 5, 0, 0, 3}, {MESSAGE, 75}', "int a[4]; char *b", '{0}, "x"'),
    "indirect": ('{MESSAGE | POINTER, 75}', "char *a", '"x"'),
    "utf16": ('{MESSAGE, 77}', "char *a", '"x"'),
    "number": ('{MESSAGE, 18}', "long a", "1"),
    "too small": ("{0, 18}, {MESSAGE, 75}", "int a[3]", "{1}"),
    "outside": ('{MESSAGE, 75, 0, 0, 0, 1ull << 63}', "char *a", '"x"'),
    "around": ('{0, 18, 0, 0, 0, -4ull}, {MESSAGE, 75}', "int a", "1"),
    "none": ('{MESSAGE, 75}', "char *a", "0"),
    "no message": ('{0, 75}', "char *a", '"x"'),
}  # fmt: skip


def test_messages_of_schemas(tmp_path):
    """The message is either in a payload of the extension, or in the payload of an event that has no message itself."""
    more = (
        BEGUN
        + r"""
    void *domain = F(DomainCreateA, void *, "dom"), *text = F(DomainRegisterStringA, void *, domain, "handle");
    """
    )
    for entries, fields, values in [*MESSAGES.values(), *UNKNOWN.values()]:
        more += f"""
    {{
        nvtxPayloadSchemaEntry_t entries[] = {{ {entries} }};
        struct {{ {fields}; }} data = {{ {values} }};
        uint64_t id = schema(domain, sizeof(entries) / sizeof(*entries), entries);
        nvtxPayloadData_t all[2] = {{ {{1, 3, "raw"}}, {{id, sizeof(data), &data}} }};
        E(MarkPayload, void, domain, all, (size_t)2), E(MarkPayload, void, text, all, (size_t)2);
        nvtxEventAttributes_t event = {{3, sizeof(event), 0, 0, 0, (int)0xDFBD0009, 2, (uint64_t)all, 0, 0}};
        F(DomainMarkEx, void, domain, &event);
        all[1].size = SIZE_MAX;
        E(MarkPayload, void, domain, all, (size_t)2);
    }}
    """
    names = [record.get("name") for record in played(tmp_path, more).of("range")][1:]
    known = [each for name in MESSAGES for each in (name, None, name, None)]
    assert names == known + [None] * 4 * len(UNKNOWN)


def test_ids_of_schemas(tmp_path):
    more = (
        BEGUN
        + r"""
    nvtxPayloadSchemaEntry_t entry = {MESSAGE, 75, 0, 0, 0, 0, 0, 0};
    nvtxPayloadSchemaAttr_t attr = {ALL | 256 | 64, 0, 1, 0, &entry, 1, 8, 0, 1 << 24, 0};
    assert(E(PayloadSchemaRegister, uint64_t, (void *)0, &attr) == 1 << 24);
    char *text = "static";
    nvtxPayloadData_t data = {1 << 24, SIZE_MAX, &text};
    E(MarkPayload, void, (void *)0, &data, (size_t)1);
    attr.schemaId = 5;
    uint64_t id = E(PayloadSchemaRegister, uint64_t, (void *)0, &attr);
    nvtxPayloadEnumAttr_t values = {32, 0, 0, 0, 4, (1 << 24) + 1, 0};
    assert(E(PayloadEnumRegister, uint64_t, (void *)0, &values) == (1 << 24) + 1);
    assert(E(PayloadSchemaRegister, uint64_t, (void *)0, (void *)0) == 0);
    assert(E(PayloadEnumRegister, uint64_t, (void *)0, (void *)0) == 0);
    attr.fieldMask = values.fieldMask = 0;
    uint64_t next = E(PayloadEnumRegister, uint64_t, (void *)0, &values);
    assert(id >= 1ull << 32 && next >= 1ull << 32 && next != id);
    assert(E(PayloadSchemaRegister, uint64_t, (void *)0, &attr) > next);
    for (int i = 0; i < 10000; i++)
        id = schema(0, 1, &entry); // more than are kept
    data = (nvtxPayloadData_t){id, 8, &text};
    E(MarkPayload, void, (void *)0, &data, (size_t)1);
    """
    )
    assert told(played(tmp_path, more)) == [BEGAN, ("mark", None, "static"), ("mark", None, None)]


def test_tables_that_are_not_known_stay_as_they_are(tmp_path):
    """The page after a table's last page is inaccessible."""
    more = r"""
    nvtxExtModuleInfo_t wild[] = {
        {2, sizeof(module), 2, 0x0104, 1, &segment, 0, 0}, {3, 32, 2, 0x0104, 1, &segment, 0, 0},
        {3, sizeof(module), 1, 0x0104, 1, &segment, 0, 0}, {3, sizeof(module), 2, 0x0102, 1, &segment, 0, 0},
        {3, sizeof(module), 2, 0x0105, 1, &segment, 0, 0}, {3, sizeof(module), 2, 0x0104, 0, &segment, 0, 0},
        {3, sizeof(module), 2, 0x0104, 1, 0, 0, 0}};
    for (unsigned i = 0; i < sizeof(wild) / sizeof(*wild); i++)
        assert(extend(&wild[i]) == 1);
    segment.functionSlots = 0;
    assert(extend(&module) == 1 && extend(0) == 1);
    segment.functionSlots = slots;
    for (int i = 0; i < 63; i++)
        assert(!slots[i]);
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(!mprotect(pages + 4096, 4096, PROT_NONE));
    for (int count = 0; count < 9; count++) {
        segment.functionSlots = (intptr_t *)(pages + 4096) - count, segment.slotCount = (size_t)count;
        assert(extend(&module) == 1);
    }
    assert(!*(intptr_t *)(pages + 4096 - 72) && *(intptr_t *)(pages + 4096 - 64));
    module.compatId = 0x0104, module.structSize = 4096, module.segmentsCount = 1000;
    segment.functionSlots = slots, segment.slotCount = SIZE_MAX;
    assert(extend(&module) == 1 && slots[7] && !slots[8]);
    """
    assert told(played(tmp_path, more)) == [BEGAN]


# A tool with functions for part of the extension.
OTHER = r"""
#include <stdio.h>
#include "abi/nvtx.h"
#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
static uint64_t registered(void *domain, const nvtxPayloadSchemaAttr_t *schema) {
    return (void)domain, SAY("schema %s\n", schema->name), 77;
}
static int popped(void *domain, const nvtxPayloadData_t *data, size_t count) {
    return (void)domain, SAY("pop %d of %d\n", (int)data->schemaId, (int)count), 49;
}
static uint64_t started(void *domain, const nvtxPayloadData_t *data, size_t count) {
    return (void)domain, (void)data, SAY("start %d\n", (int)count), 1000;
}
static void ended(void *domain, uint64_t id, const nvtxPayloadData_t *data, size_t count) {
    (void)domain, (void)data, (void)count, SAY("end %d\n", (int)id);
}
static uint8_t enabled(void) { return 5; }
static int64_t now(void) { return 123; }
int InitializeInjectionNvtx2(nvtx_get_export_table *get) { return !!get; }
int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
    intptr_t *slots = module->segments->functionSlots;
    SAY("module %d %x\n", module->moduleId, module->compatId);
    slots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = (intptr_t)registered;
    slots[NVTX3EXT_CBID_nvtxRangePopPayload] = (intptr_t)popped;
    slots[NVTX3EXT_CBID_nvtxRangeStartPayload] = (intptr_t)started;
    slots[NVTX3EXT_CBID_nvtxRangeEndPayload] = (intptr_t)ended;
    slots[NVTX3EXT_CBID_nvtxDomainIsEnabled] = (intptr_t)enabled;
    slots[8] = (intptr_t)now;
    return BEGINS;
}
"""
USED = (
    BEGUN
    + r"""
    nvtxPayloadSchemaEntry_t entry = {MESSAGE, 75, 0, 0, 0, 0, 0, 0};
    nvtxPayloadSchemaAttr_t attr = {ALL | 2, "mine", 1, 0, &entry, 1, 0, 0, 0, 0};
    char *text = "message";
    nvtxPayloadData_t data = {E(PayloadSchemaRegister, uint64_t, (void *)0, &attr), 8, &text};
    int level = E(RangePushPayload, int, (void *)0, &data, (size_t)1);
    uint64_t id = E(RangeStartPayload, uint64_t, (void *)0, &data, (size_t)1);
    E(RangeEndPayload, void, (void *)0, id, &data, (size_t)1);
    int last = E(RangePopPayload, int, (void *)0, &data, (size_t)1);
    printf("%d %d %d %d\n", level, last, E(DomainIsEnabled, uint8_t, (void *)0), !!slots[8]), fflush(stdout);
"""
)
MESSAGE = [BEGAN, *((what, None, "message") for what in ("push", "start", "end", "end"))]


def played_beside(tmp_path, begins, monkeypatch, used=USED):
    flags = [*hooked.SHARED, f"-I{ABI.parents[1]}", f"-DBEGINS={begins}"]
    other = hooked.compile_c(tmp_path / "other.so", OTHER, *flags, prelude=False)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(other))
    done = hooked.run(tmp_path / "t.mp", client(tmp_path, used))
    assert (done.returncode, done.stderr) == (0, "")
    return told(Trace(tmp_path / "t.mp")), done.stdout.splitlines()


def test_another_tool_gets_what_the_extension_says_too(tmp_path, monkeypatch):
    ranges, lines = played_beside(tmp_path, 1, monkeypatch)
    assert ranges == MESSAGE
    assert lines == ["module 2 103", "schema mine", "start 1", "end 1000", "pop 77 of 1", "0 49 5 1"]


def test_another_tool_that_does_not_begin_is_left_out(tmp_path, monkeypatch):
    assert played_beside(tmp_path, 0, monkeypatch) == (MESSAGE, ["module 2 103", "0 0 1 0"])


@pytest.mark.parametrize("begins", [0, 1])
def test_unknown_extensions_are_kept_for_the_other_tool(tmp_path, monkeypatch, begins):
    used = f"module.compatId = 0x0200; assert(extend(&module) == {begins} && slots[4] && !slots[3]);"
    assert played_beside(tmp_path, begins, monkeypatch, used) == ([BEGAN], ["module 2 200"])


@pytest.mark.full
def test_program_with_the_headers(tmp_path, nvtx_wheels):
    source = r"""
    #include <nvtx3/nvToolsExtPayload.h>
    int main(void) {
        nvtxDomainHandle_t domain = nvtxDomainCreateA("dom");
        assert(nvtxDomainIsEnabled(domain) == 1);
        struct { uint64_t size; const char *text; } data = {5, "message"};
        nvtxPayloadSchemaEntry_t entries[] = {
            {.type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, .name = "size"},
            {.flags = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE, .type = NVTX_PAYLOAD_ENTRY_TYPE_CSTRING}};
        nvtxPayloadSchemaAttr_t schema = {
            .fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                         NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES,
            .type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, .entries = entries, .numEntries = 2};
        nvtxPayloadData_t payload = {nvtxPayloadSchemaRegister(domain, &schema), sizeof(data), &data};
        nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
        event.messageType = NVTX_MESSAGE_TYPE_ASCII, event.message.ascii = "init";
        assert(nvtxDomainRangePushEx(domain, &event) == 0 && nvtxRangePopPayload(domain, &payload, 1) == 0);
        assert(nvtxRangePushPayload(domain, &payload, 1) == 0 && nvtxDomainRangePop(domain) == 0);
        nvtxRangeEndPayload(domain, nvtxRangeStartPayload(domain, &payload, 1), &payload, 1);
        nvtxMarkPayload(domain, &payload, 1);
        assert(nvtxTimestampGet() == 0);
    }
    """
    trace = hooked.traced(tmp_path, source, f"-I{nvtx_wheels}/include", "-Wno-unused-parameter")
    message = ("dom", "message")
    assert told(trace) == [
        ("push", "dom", "init"), ("end", "dom", "init"), ("push", *message), ("end", *message), ("start", *message),
        ("end", *message), ("mark", *message),
    ]  # fmt: skip
