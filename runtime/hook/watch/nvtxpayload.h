// The payload extension of NVTX.

#ifndef GPT_NVTXPAYLOAD_H
#define GPT_NVTXPAYLOAD_H

#include "nvtxrange.h"

// Sets the text to the message among the payloads of an event, NULL if that is not known.
void hook_nvtx_read_payload(struct nvtx_name *name, const char *domain, const nvtxPayloadData_t *payloads,
                            size_t count);

#endif
