// Writes records into buffers of every size: no byte goes outside them, and a full buffer stays full.

#include "../../runtime/abi/records.h"
#include "harness.h"

static void put(struct gpt_packer *buffer, uint8_t what, const uint8_t *data, size_t size) {
    uint64_t number = 0;
    memcpy(&number, data, size < 8 ? size : 8);
    struct gpt_str text = {(const char *)data, size};
    switch (what % 8) {
    case 0:
        gpt_put_u64(buffer, number);
        break;
    case 1:
        gpt_put_str(buffer, (const char *)data, size);
        break;
    case 2:
        gpt_put_bin(buffer, data, size);
        break;
    case 3:
        gpt_put_array(buffer, number);
        break;
    case 4:
        gpt_put_map(buffer, number);
        break;
    case 5:
        gpt_pack_end(buffer, &(struct gpt_end){.records = number, .status = size});
        break;
    case 6:
        gpt_pack_diag(buffer, &(struct gpt_diag){.level = text, .where = text, .text = text, .ref = text});
        break;
    default:
        gpt_put_bool(buffer, size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    size_t room = data[0] + 256u * (data[1] & 3);
    unsigned char *start = malloc(room ? room : 1);
    struct gpt_packer buffer = {start, start + room, false};
    for (size_t at = 2; at + 2 <= size;) {
        size_t length = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;
        bool full = buffer.full, record = data[at] % 8 == 5 || data[at] % 8 == 6; // these start a new record
        put(&buffer, data[at], data + at + 2, length);
        if (buffer.at > buffer.end || (full && !record && !buffer.full))
            abort();
        at += 2 + length;
    }
    free(start);
    return 0;
}
