// runtime/hook/watch/objects.c without a driver, as test_objects.py builds it.

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hook/watch/watch.h"

struct watched *hook_watched;

static struct reference add(enum object_kind kind, uint64_t handle, uint64_t parent, const char *name) {
    return hook_object_add(
        &(struct object_facts){.kind = kind, .handle = handle, .parent = parent, .name = name});
}

static char shown[1024];

static void show(const struct property *property, void *unused) {
    (void)unused;
    sprintf(shown + strlen(shown), "%d %llu %d %llu %llu %s;", (int)property->what,
            (unsigned long long)property->number, property->device, (unsigned long long)property->value,
            (unsigned long long)property->size, property->name ? property->name : "-");
}

static const char *properties(uint64_t handle) {
    *shown = '\0';
    hook_object_each(handle, show, NULL);
    return shown;
}

int main(void) {
    struct object_view view;
    assert(!hook_object_find(0x10).current && !hook_object_look(0x10, &view)); // the hook is not set up
    hook_watched = calloc(1, sizeof(*hook_watched));

    // A function has its owner's image, and ends with it.
    hook_object_add(&(struct object_facts){
        .kind = OBJECT_LIBRARY, .handle = 0x100, .image = "image", .image_size = 6, .id = 7, .made = true});
    struct reference kernel = add(OBJECT_KERNEL, 0x110, 0x100, "alpha");
    hook_object_add(&(struct object_facts){
        .kind = OBJECT_FUNCTION, .handle = 0x120, .parent = 0x110, .context = 0x1, .id = 9});
    assert(hook_object_look(0x120, &view) && !strcmp(view.image, "image") && view.image_size == 6);
    assert(view.module == 7 && view.id == 9 && view.parent == 0x110 && view.context == 0x1);
    assert(hook_function_with_id(9) == 0x120 && !hook_function_with_id(8));
    assert(hook_object_set_id(kernel, 3) == 3 && hook_object_set_id(kernel, 4) == 3);

    // A kernel may be looked up again, even without its name; another name means another function.
    assert(add(OBJECT_KERNEL, 0x110, 0x100, "alpha").generation == kernel.generation);
    assert(add(OBJECT_KERNEL, 0x110, 0x100, NULL).generation == kernel.generation);
    struct reference function = hook_object_find(0x120);
    // The handle of a function whose context was destroyed without our notice.
    add(OBJECT_KERNEL, 0x118, 0x100, "delta");
    hook_object_add(
        &(struct object_facts){.kind = OBJECT_FUNCTION, .handle = 0x120, .parent = 0x118, .id = 10});
    assert(!hook_is_alive(function) && hook_object_look(0x120, &view) && view.id == 10);
    hook_object_add(
        &(struct object_facts){.kind = OBJECT_FUNCTION, .handle = 0x120, .parent = 0x110, .id = 9});
    function = hook_object_find(0x120);
    assert(add(OBJECT_FUNCTION, 0x120, 0x100, "alpha").generation == function.generation);
    assert(add(OBJECT_KERNEL, 0x110, 0x100, "gamma").generation != kernel.generation);
    assert(!hook_is_alive(kernel) && !hook_is_alive(function) && !hook_object_find(0x120).current);

    // Properties are replaced, not accumulated, and end with their object.
    hook_object_set(0x110, &(struct property){PROPERTY_ATTRIBUTE, 8, -1, 1000});
    hook_object_set(0x110, &(struct property){PROPERTY_ATTRIBUTE, 8, 0, 3000});
    hook_object_set(0x110, &(struct property){PROPERTY_ATTRIBUTE, 8, -1, 2000});
    assert(!strcmp(properties(0x110), "0 8 0 3000 0 -;0 8 -1 2000 0 -;"));
    hook_object_set(0x100, &(struct property){PROPERTY_VARIABLE, 0, -1, 0xabc, 4, "one"});
    hook_object_set(0x100, &(struct property){PROPERTY_VARIABLE, 0, -1, 0xdef, 8, "two"});
    assert(!strcmp(properties(0x100), "4 0 -1 3567 8 two;4 0 -1 2748 4 one;"));
    uint64_t before = hook_object_generation();
    hook_object_gone(0x100, before);
    assert(!*properties(0x110) && !*properties(0x100) && !hook_object_find(0x110).current);
    assert(!hook_watched->objects.count);

    // If a call ends an object and another thread makes a new one meanwhile, the new one stays.
    add(OBJECT_MODULE, 0x100, 0, NULL);
    hook_object_gone(0x100, before);
    assert(hook_object_find(0x100).current);
    hook_object_gone(0x100, hook_object_generation());
    assert(!hook_object_find(0x100).current);

    // When a context ends, only its own objects end with it.
    add(OBJECT_CONTEXT, 0x1, 0, NULL);
    hook_object_add(&(struct object_facts){.kind = OBJECT_MODULE, .handle = 0x200, .context = 0x1});
    add(OBJECT_LIBRARY, 0x300, 0, NULL), add(OBJECT_KERNEL, 0x310, 0x300, "beta");
    hook_object_add(
        &(struct object_facts){.kind = OBJECT_FUNCTION, .handle = 0x320, .parent = 0x310, .context = 0x1});
    for (uint64_t i = 0; i < 3000; i++)
        add(OBJECT_FUNCTION, 0x10000 + i, 0x200, "many");
    assert(hook_watched->objects.count == 3005);
    hook_object_context_gone(0x1, hook_object_generation());
    assert(hook_watched->objects.count == 2 && hook_object_find(0x310).current &&
           !hook_object_find(0x320).current);

    // Memory is reused, including memory of long names.
    char *name = malloc(100000);
    memset(name, 'x', 99999), name[99999] = '\0';
    char *slab = hook_watched->objects.slab;
    size_t left = hook_watched->objects.slab_left;
    for (int i = 0; i < 4000; i++) {
        name[i % 2 ? 50 : 99999] = '\0';
        hook_object_add(&(struct object_facts){
            .kind = OBJECT_MODULE, .handle = 0x400, .name = i % 1000 ? name : name + 51, .made = true});
        hook_object_set(0x400, &(struct property){PROPERTY_VARIABLE, 0, -1, 1, 2, name});
        name[50] = 'x';
    }
    assert(hook_watched->objects.slab == slab && left - hook_watched->objects.slab_left < 4096);
    return 0;
}
