// The shared and local memory of kernels, from the declarations of their PTX: a program that asks about its
// kernels waits for no compiler. gpt/asm/host/shared.py places the variables of one kernel in the same way.
//
// A name that a function or a variable mentions leads to what has that name, and so on; a call by a prototype
// leads to all functions whose address the module takes. A kernel needs the variables that it leads to.
// gpt/ptx/prune.py has the same rules.

#include <stdlib.h>
#include <string.h>

#include "image.h"

struct span { // a piece of the text
    const char *start, *end;
};

struct item { // a function or a variable of the module
    struct span name, text;
    size_t first; // the first item of that name
    size_t local; // bytes
    bool is_code, is_func, is_taken, calls_any;
};

struct shared_variable {
    struct span name; // of the function that declares it, or its own
    size_t size, align, item;
};

struct link {
    size_t from, to;
};

struct module_text {
    struct code *scratch; // of the variables that are read
    struct item *items;
    struct shared_variable *variables;
    struct link *links; // by `from`
    size_t item_count, item_room, variable_count, variable_room, link_count, link_room;
};

#define APPEND(array, count, room)                                                                           \
    ({                                                                                                       \
        typeof(array) larger_ = sim_grow(array, count, &(room), sizeof(*larger_));                           \
        if (larger_)                                                                                         \
            array = larger_, larger_[count++] = (typeof(*larger_)){0};                                       \
        larger_ ? &larger_[count - 1] : NULL;                                                                \
    })

// Reading

// Reads a declaration. Those of a function have its name.
static void read_variables(struct module_text *module, struct text *text, struct span function) {
    bool shared = sim_is_token(text, ".shared"), local = sim_is_token(text, ".local");
    const char *start = text->token;
    size_t before = module->scratch->variable_count;
    sim_read_variables(module->scratch, text, false, NULL);
    for (size_t i = before; i < module->scratch->variable_count; i++) {
        const struct variable *variable = &module->scratch->variables[i];
        struct span own = {variable->name, variable->name + strlen(variable->name)};
        if (local && function.start)
            module->items[module->item_count - 1].local += variable->size;
        struct item *item =
            function.start ? NULL : APPEND(module->items, module->item_count, module->item_room);
        if (item)
            *item = (struct item){.name = own, .text = {start, text->at}};
        struct shared_variable *made =
            shared ? APPEND(module->variables, module->variable_count, module->variable_room) : NULL;
        if (made)
            *made = (struct shared_variable){
                .name = function.start ? function : own, .size = variable->size, .align = variable->align};
    }
}

static void read_function(struct module_text *module, struct text *text) {
    struct item *item = APPEND(module->items, module->item_count, module->item_room);
    if (!item)
        return;
    item->text.start = text->token;
    item->is_code = true;
    item->is_func = sim_is_token(text, ".func");
    for (int depth = 0; sim_next_token(text) && !sim_is_token(text, ";") && !sim_is_token(text, "{");) {
        depth += sim_is_token(text, "(") - sim_is_token(text, ")");
        if (!item->name.start && !depth && (sim_is_word(*text->token) || *text->token == '%'))
            item->name = (struct span){text->token, text->at};
    }
    size_t at = module->item_count - 1;
    struct span name = item->name;
    bool begins = true; // a statement
    for (int depth = text->size && sim_is_token(text, "{"); depth && sim_next_token(text);) {
        if (begins && (sim_is_token(text, ".shared") || sim_is_token(text, ".local")))
            read_variables(module, text, name);
        depth += sim_is_token(text, "{") - sim_is_token(text, "}");
        begins = text->size == 1 && strchr("{};:", *text->token);
    }
    module->items[at].text.end = text->at;
}

static void read_module(struct module_text *module, struct text *text) {
    static const char *const spaces[] = {".shared", ".global", ".const"};
    bool external = false;
    while (sim_next_token(text)) {
        if (sim_is_token(text, ".func") || sim_is_token(text, ".entry"))
            read_function(module, text);
        for (size_t i = 0; !external && i < 3; i++)
            if (text->size && sim_is_token(text, spaces[i]))
                read_variables(module, text, (struct span){0});
        external = text->size && (sim_is_token(text, ".extern") || (external && !sim_is_token(text, ";")));
    }
}

// What leads where

static int compare(struct span one, struct span other) {
    size_t a = (size_t)(one.end - one.start), b = (size_t)(other.end - other.start);
    int order = a && b ? memcmp(one.start, other.start, a < b ? a : b) : 0;
    return order ? order : (a > b) - (a < b);
}

static int by_name(const void *one, const void *other) {
    return compare(((const struct item *)one)->name, ((const struct item *)other)->name);
}

// The first item of this name, or the number of items.
static size_t find(const struct module_text *module, struct span name) {
    size_t low = 0, high = module->item_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare(module->items[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool there = low < module->item_count && !compare(module->items[low].name, name);
    return there ? low : module->item_count;
}

static void add_links(struct module_text *module, size_t from, size_t *seen) {
    struct item *item = &module->items[from];
    struct text text = {.at = item->text.start, .end = item->text.end};
    bool takes = !item->is_code;
    while (sim_next_token(&text)) {
        item->calls_any |= sim_is_token(&text, ".callprototype");
        takes = !item->is_code || sim_is_token(&text, "mov") || (takes && !sim_is_token(&text, ";"));
        if ((!sim_is_word(*text.token) && *text.token != '%') || (*text.token >= '0' && *text.token <= '9'))
            continue;
        size_t to = find(module, (struct span){text.token, text.at});
        if (to == module->item_count)
            continue;
        module->items[to].is_taken |= takes;
        if (seen[to] == from + 1)
            continue;
        seen[to] = from + 1;
        struct link *link = APPEND(module->links, module->link_count, module->link_room);
        if (link)
            *link = (struct link){from, to};
    }
}

struct walk {
    size_t mark, *reached; // `reached` has the mark of each item that was met
    size_t *waiting, count;
};

static void meet(struct walk *walk, size_t item) {
    if (walk->reached[item] != walk->mark) {
        walk->reached[item] = walk->mark;
        walk->waiting[walk->count++] = item;
    }
}

// Meets all that a kernel leads to. Returns the bytes of local memory.
static size_t follow(const struct module_text *module, const size_t *begins, size_t kernel,
                     struct walk *walk) {
    size_t local = 0;
    walk->mark = kernel + 1;
    meet(walk, kernel);
    for (bool any = false; walk->count;) {
        size_t name = walk->waiting[--walk->count];
        for (size_t at = name; at < module->item_count && module->items[at].first == name; at++) {
            const struct item *item = &module->items[at];
            local += item->local;
            for (size_t i = begins[at]; i < begins[at + 1]; i++)
                meet(walk, module->links[i].to);
            for (size_t i = 0; item->calls_any && !any && i < module->item_count; i++)
                if (module->items[i].is_func && module->items[i].is_taken)
                    meet(walk, i);
            any |= item->calls_any;
        }
    }
    return local;
}

// Results

void sim_set_sizes(struct entry *entry, size_t shared, size_t local) {
    int *attributes = entry->attributes, dynamic = sim_attribute(8) - (int)shared;
    attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = (int)shared;
    attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)local;
    attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = dynamic > 0 ? dynamic : 0;
    entry->measured = true;
}

// The bytes of the variables of a kernel, one after the other.
static size_t place(const struct module_text *module, const size_t *reached, size_t mark) {
    size_t end = 0;
    for (size_t i = 0; i < module->variable_count; i++) {
        const struct shared_variable *variable = &module->variables[i];
        if (reached[variable->item] == mark)
            end = (end + variable->align - 1) / variable->align * variable->align + variable->size;
    }
    return end;
}

static void measure(struct module_text *module, struct code *code, const char *text) {
    size_t items = module->item_count, *numbers = calloc(4 * (items + 1), sizeof(*numbers));
    if (!numbers)
        return;
    size_t *begins = numbers, *seen = begins + items + 1, *reached = seen + items + 1;
    struct walk walk = {.reached = reached, .waiting = reached + items + 1};
    qsort(module->items, items, sizeof(*module->items), by_name);
    for (size_t i = 0; i < items; i++) {
        bool same = i && !by_name(&module->items[i - 1], &module->items[i]);
        module->items[i].first = same ? module->items[i - 1].first : i;
        begins[i] = module->link_count;
        add_links(module, i, seen);
    }
    begins[items] = module->link_count;
    for (size_t i = 0; i < module->variable_count; i++)
        module->variables[i].item = find(module, module->variables[i].name);
    for (size_t i = 0; i < code->entry_count; i++) {
        struct entry *entry = &code->entries[i];
        if (entry->text != text || entry->measured)
            continue;
        size_t kernel = find(module, (struct span){entry->name, entry->name + strlen(entry->name)});
        size_t local = kernel < items ? follow(module, begins, kernel, &walk) : 0;
        sim_set_sizes(entry, kernel < items ? place(module, reached, kernel + 1) : 0, local);
    }
    free(numbers);
}

void sim_measure(struct code *code, const char *start, size_t size) {
    struct module_text module = {.scratch = calloc(1, sizeof(*module.scratch))};
    if (!module.scratch)
        return;
    module.scratch->references = 1;
    struct text text = {.at = start, .end = start + size};
    read_module(&module, &text);
    measure(&module, code, start);
    free(module.items), free(module.variables), free(module.links);
    sim_release_code(module.scratch);
}
