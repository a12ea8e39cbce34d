// The part of the ABI that we need between a program with NVTX (version 3) and the library that
// NVTX_INJECTION64_PATH names. tests/runtime/test_nvtx.py compares it with NVIDIA's headers.

#ifndef GPT_ABI_NVTX_H
#define GPT_ABI_NVTX_H

#include <stddef.h>
#include <stdint.h>

enum { NVTX_ETID_CALLBACKS = 1 };

// Tables of callbacks, and the places in them.
enum { NVTX_CB_MODULE_CORE = 1, NVTX_CB_MODULE_CORE2 = 5 };

enum {
    NVTX_CBID_CORE_MarkEx = 1,
    NVTX_CBID_CORE_MarkA = 2,
    NVTX_CBID_CORE_MarkW = 3,
    NVTX_CBID_CORE_RangeStartEx = 4,
    NVTX_CBID_CORE_RangeStartA = 5,
    NVTX_CBID_CORE_RangeStartW = 6,
    NVTX_CBID_CORE_RangeEnd = 7,
    NVTX_CBID_CORE_RangePushEx = 8,
    NVTX_CBID_CORE_RangePushA = 9,
    NVTX_CBID_CORE_RangePushW = 10,
    NVTX_CBID_CORE_RangePop = 11,
};

enum {
    NVTX_CBID_CORE2_DomainMarkEx = 1,
    NVTX_CBID_CORE2_DomainRangeStartEx = 2,
    NVTX_CBID_CORE2_DomainRangeEnd = 3,
    NVTX_CBID_CORE2_DomainRangePushEx = 4,
    NVTX_CBID_CORE2_DomainRangePop = 5,
    NVTX_CBID_CORE2_DomainRegisterStringA = 10,
    NVTX_CBID_CORE2_DomainRegisterStringW = 11,
    NVTX_CBID_CORE2_DomainCreateA = 12,
    NVTX_CBID_CORE2_DomainCreateW = 13,
};

enum { NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE = 2, NVTX_MESSAGE_TYPE_REGISTERED = 3 };

typedef struct {
    uint16_t version, size; // bytes of this struct that the program knows
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    const void *message;
} nvtxEventAttributes_t;

typedef void nvtx_function(void);

typedef struct {
    size_t struct_size;
    // Returns pointers to the function pointers, and their number; entry 0 counts although it's unused.
    int (*GetModuleFunctionTable)(int module, nvtx_function ****table, unsigned *size);
} NvtxExportTableCallbacks;

typedef const void *nvtx_get_export_table(uint32_t id);

// An extension has a table of its own. InitializeInjectionNvtxExtension gets each table once and fills it in.

enum { NVTX_VERSION = 3, NVTX_EXT_PAYLOAD_MODULEID = 2, NVTX_EXT_PAYLOAD_COMPATID = 0x0104 };
// The declarations here are the same in all versions from this one on; NCCL 2.32 uses it.
enum { NVTX_OLDEST_PAYLOAD = 0x0103 };

typedef struct {
    size_t segmentId, slotCount;
    intptr_t *functionSlots; // functions, none if 0
} nvtxExtModuleSegment_t;

typedef struct {
    uint16_t nvtxVer, structSize, moduleId, compatId;
    size_t segmentsCount;
    nvtxExtModuleSegment_t *segments;
    intptr_t (*getExportFunction)(uint32_t id);
    const void *extInfo;
} nvtxExtModuleInfo_t;

// The payload extension: ranges and marks with data, which a schema describes.

enum {
    NVTX3EXT_CBID_nvtxPayloadSchemaRegister = 0,
    NVTX3EXT_CBID_nvtxPayloadEnumRegister = 1,
    NVTX3EXT_CBID_nvtxMarkPayload = 2,
    NVTX3EXT_CBID_nvtxRangePushPayload = 3,
    NVTX3EXT_CBID_nvtxRangePopPayload = 4,
    NVTX3EXT_CBID_nvtxRangeStartPayload = 5,
    NVTX3EXT_CBID_nvtxRangeEndPayload = 6,
    NVTX3EXT_CBID_nvtxDomainIsEnabled = 7,
};

// The type of an event whose payload is nvtxPayloadData_t[reserved0].
#define NVTX_PAYLOAD_TYPE_EXT ((int32_t)0xDFBD0009)

enum {
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE = 4,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES = 16,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES = 32,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE = 64,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT = 128,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID = 256,
    NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID = 32,
    NVTX_PAYLOAD_SCHEMA_TYPE_STATIC = 1,
    NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC = 2,
    NVTX_PAYLOAD_SCHEMA_ID_STATIC_START = 16777216, // and below the next are ids that a program chose
};
#define NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START ((uint64_t)1 << 32)

enum {
    NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE = 16,
    NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED = 32,
    NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE = 1024,
    NVTX_PAYLOAD_ENTRY_TYPE_CSTRING = 75,
    NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8 = 76,
    NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32 = 78,
    NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE = 80,
};

typedef struct {
    uint64_t schemaId;
    size_t size; // bytes; SIZE_MAX if the program leaves it to the schema
    const void *payload;
} nvtxPayloadData_t;

typedef struct {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t arrayOrUnionDetail, offset;
    const void *semantics, *reserved;
} nvtxPayloadSchemaEntry_t;

typedef struct {
    uint64_t fieldMask;
    const char *name;
    uint64_t type, flags;
    const nvtxPayloadSchemaEntry_t *entries;
    size_t numEntries, payloadStaticSize, packAlign;
    uint64_t schemaId;
    void *extension;
} nvtxPayloadSchemaAttr_t;

typedef struct {
    uint64_t fieldMask;
    const char *name;
    const void *entries;
    size_t numEntries, sizeOfEnum;
    uint64_t schemaId;
    void *extension;
} nvtxPayloadEnumAttr_t;

#endif
