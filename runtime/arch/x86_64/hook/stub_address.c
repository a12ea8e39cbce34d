// Where the stubs (stub.S) are.

#include "hook/entry/stub.h"

enum { SIZE = 16 };

extern const char hook_stubs[], hook_stubs_end[];

void *hook_stub_of(const struct slot *slot) { return (void *)(hook_stubs + SIZE * (slot - hook_slots)); }

bool hook_is_stub(const void *address) {
    return (const char *)address >= hook_stubs && (const char *)address < hook_stubs_end;
}
