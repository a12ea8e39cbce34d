// What is needed of the ABI between a program with NVTX (version 3) and what NVTX_INJECTION64_PATH names.
// tests/runtime/test_nvtx.py holds it against NVIDIA's headers.

#ifndef GPT_NVTX_ABI_H
#define GPT_NVTX_ABI_H

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
    uint16_t version, size; // bytes of what the program knows of this struct
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
    // Returns the places of function pointers, and how many there are, the one that is not used at 0
    // included.
    int (*GetModuleFunctionTable)(int module, nvtx_function ****table, unsigned *size);
} NvtxExportTableCallbacks;

typedef const void *nvtx_get_export_table(uint32_t id);

#endif
