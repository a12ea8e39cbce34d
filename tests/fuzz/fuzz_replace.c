// Fuzz how the auditing library reads a file's build id, and how it chooses the file to load in place of a
// library.

#include "../../runtime/replace/folder.c"
#include "../../runtime/replace/replace.c"
#include "harness.h"

static void read_names(const char *text) {
    char into[64];
    for (size_t room = 1; room <= sizeof(into); room += 9)
        expand_origin(text, "/a/folder", into, room);
    size_t count;
    replace_find_files(base_name(text), &count);
    if (stem_of(base_name(text)) > strlen(base_name(text)))
        abort();
    char folder[PATH_MAX];
    folder_of(text, folder);
    common_end(text, "/usr/lib/libfoo.so.1");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct identity identity;
    if (!file_count)
        for (int i = 0; i < 3; i++)
            add_file((const char *[]){"/x/libfoo.so", "/x/libfoo.so.1", "/x/y/bar"}[i]);
    harness_file(data, size);
    if (!replace_identify(harness_path, &identity) && identity.size > sizeof(identity.build_id))
        abort();
    char *text = strndup((const char *)data, size);
    if (text)
        read_names(text);
    free(text);
    return 0;
}
