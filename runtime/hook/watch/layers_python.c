// Calls of torch.nn.Module, and the nodes of PyTorch's autograd graph, for gpt/layers/__init__.py.
//
// Every call of a module calls the Python function torch.nn.Module.__call__, through the pointer `vectorcall`
// in the function object. We replace that pointer. So no Python code is added: torch.compile, which looks at
// functions and their bytecode, sees no change, and a call costs little.
//
// We aren't linked to Python, so gpt/layers passes the addresses of its functions. All of this runs with the
// GIL.

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hook/write/write.h"
#include "watch.h"

enum { MOST_DEPTH = 3, MOST_ITEMS = 64 };                 // nested containers; items of each
enum { TAGGED = 1 << 16, NUMBER_BITS = 40 };              // a node's number has fewer bits in practice
enum { TABLES = 16, APART = 40503 };                      // threads with a table of their own; odd
enum { LIST = 1 << 25, TUPLE = 1 << 26, DICT = 1 << 29 }; // in PyType_GetFlags
enum { METH_VARARGS = 1, METH_KEYWORDS = 2, METH_O = 8 };

typedef gpt_object object;

struct method { // PyMethodDef
    const char *name;
    object *(*function)(object *, object *);
    int flags;
    const char *doc;
};

static struct gpt_python saved; // with references to its objects: modules may run until Python has ended
static const struct gpt_python *python;
static size_t vectorcall_at; // where a Python function has its vectorcall
static bool tagging = true;

// Thread-local. There's little room for such variables, and the program's other libraries need some of it.
static TLS object *inside;          // the name of the innermost module, or NULL outside of all
static TLS object *backward_module; // the open module of a backward pass, or NULL
static TLS uint32_t thread_number;
static TLS object *region;  // the module that's open in compiled code, or NULL
static TLS object *setting; // the kind of set-up in which the thread is, such as autotuning, or NULL
static TLS object *delayed; // the name of its range, while that waits for the driver

static object *type_of(object *one) { return *(object **)((char *)one + python->type_at); }

static object *outer(void) { return inside ? inside : python->none; }

// Clear an error that our own calls caused. Returns false for an exception from a signal handler, which
// belongs to the program.
static bool drop_error(void) {
    if (!python->matches_error(python->exception))
        return false;
    python->clear_error();
    return true;
}

static void end_region(void) {
    if (region)
        gpt_hook_layer_end();
    region = NULL;
}

// -- Backward passes -------------------------------------------------------

static void end_backward(void) {
    end_region();
    if (backward_module)
        gpt_hook_layer_end();
    backward_module = NULL;
}

static object *on_backward(object *name, object *gradients) {
    (void)gradients;
    if (!setting) {
        end_backward();
        if (name != python->none && gpt_hook_layer(python->text_of(name)))
            backward_module = name;
    }
    python->add_reference(python->none);
    return python->none;
}

static struct method method = {"gpt_layers", on_backward, METH_O, NULL};

// Return whether a node has no hook yet, and remember that it has. PyTorch numbers the nodes of a thread in
// the order of their creation. If two have the same place in the table, the first is forgotten. So threads
// that run the same model side by side, and thus reach the same numbers, must not share places.
static bool is_new(uint64_t number) {
    static _Atomic uint32_t threads;
    static _Atomic uint64_t tagged[TABLES][TAGGED]; // a page takes memory once it's used
    if (!thread_number)
        thread_number = atomic_fetch_add(&threads, 1) + 1;
    uint64_t key = number | (uint64_t)thread_number << NUMBER_BITS;
    uint64_t place = number + (uint64_t)thread_number / TABLES * APART;
    return atomic_exchange_explicit(&tagged[thread_number % TABLES][place % TAGGED], key,
                                    memory_order_relaxed) != key;
}

static bool is_true(object *function) {
    object *found = python->call(function, NULL);
    if (!found)
        python->clear_error();
    else
        python->drop(found);
    return found == python->truth;
}

// Return the node that made a tensor. The program may override what tensors do, in a subclass or in a
// TorchFunctionMode, and mustn't see that we look.
static object *node_of(object *tensor, bool overridden) {
    object *type = type_of(tensor);
    bool plain = (type == python->tensor || type == python->parameter) && !overridden;
    return plain ? python->get_attribute(tensor, python->grad_fn)
                 : python->call(python->find_node, tensor, NULL);
}

// Let a node record its module when it runs. register_prehook would be the obvious way, but it takes 15 times
// as long, because it makes a dictionary and a handle for each node. _register_hook_dict, by which
// Tensor.register_hook adds a tensor's hooks to the node that made it, accepts any tensor: so a tensor of
// ours for each module carries the hook of its nodes.
static bool add_hook(object *node, object *name, bool overridden) {
    object *carrier, *done;
    if (overridden) { // the program's mode would see that we make a tensor
        done = python->call(python->add_hook, node, name, NULL);
    } else {
        if (!(carrier = python->dict_item(python->carriers, name))) {
            if (!(carrier = python->call(python->make_carrier, name, NULL)))
                return false;
            python->drop(carrier); // nothing frees it
        }
        done = python->call_method(node, python->register_hooks, carrier, NULL);
    }
    if (done)
        python->drop(done);
    return done;
}

// Assign the node that made a tensor to a module, unless the node belongs to one already.
static bool tag_tensor(object *tensor, object *name, bool overridden) {
    object *node = node_of(tensor, overridden), *number = NULL;
    if (node == python->none) {
        python->drop(node);
        return true;
    }
    bool good = node && (number = python->call_method(node, python->sequence_nr, NULL));
    long long at = good ? python->number_of(number) : -1;
    good = at >= 0; // a node that accumulates gradients has the largest number there is
    if (good && is_new((uint64_t)at))
        good = add_hook(node, name, overridden);
    if (number)
        python->drop(number);
    if (node)
        python->drop(node);
    return good || drop_error();
}

// Take references to the items of a container.
static int list_items(object *value, unsigned long flags, object *items[MOST_ITEMS]) {
    ssize_t size = flags & DICT    ? MOST_ITEMS
                   : flags & TUPLE ? python->tuple_size(value)
                                   : python->list_size(value);
    ssize_t place = 0;
    int count = 0;
    object *key;
    for (; count < size && count < MOST_ITEMS; count++) {
        if (flags & DICT) {
            if (!python->dict_next(value, &place, &key, &items[count]))
                break;
        } else
            items[count] = flags & TUPLE ? python->tuple_item(value, count) : python->list_item(value, count);
        python->add_reference(items[count]);
    }
    return count;
}

static bool tag_nested(object *value, object *name, bool overridden, int levels) {
    object *type = type_of(value), *items[MOST_ITEMS];
    if (type == python->tensor || python->is_subtype(type, python->tensor))
        return tag_tensor(value, name, overridden);
    unsigned long flags = python->flags_of(type);
    if (!(flags & (LIST | TUPLE | DICT)) || !levels)
        return true;
    bool good = true;
    int count = list_items(value, flags, items);
    for (int i = 0; i < count; i++) {
        good = good && tag_nested(items[i], name, overridden, levels - 1);
        python->drop(items[i]);
    }
    return good;
}

static bool tag(object *const *values, size_t count, object *name) {
    bool good = true, overridden = tagging && count && is_true(python->is_mode_enabled);
    for (size_t i = 0; tagging && good && i < count; i++)
        good = tag_nested(values[i], name, overridden, MOST_DEPTH);
    return good;
}

static object *backward_name(object *name) {
    object *found = name == python->none ? NULL : python->dict_item(python->backward_names, name);
    return found ? found : python->none;
}

object *gpt_hook_new_node_hook(object *name) { return python->new_function(&method, name, NULL); }

void gpt_hook_stop_tagging(void) { tagging = false; }

static object *run_backward(object *original, object *arguments, object *keywords) {
    // a pass begins outside of modules, but a thread of the engine may still be in one of the pass before
    object *outputs = python->tuple_size(arguments) ? python->tuple_item(arguments, 0) : NULL;
    if (outputs && hook_records_layers() && !tag(&outputs, 1, python->backward_pass))
        return NULL;
    object *result = python->call_with(original, arguments, keywords);
    if (!setting)
        end_backward();
    return result;
}

object *gpt_hook_wrap_backward(object *original) {
    static struct method engine = {"_engine_run_backward", NULL, METH_VARARGS | METH_KEYWORDS, NULL};
    engine.function = (object * (*)(object *, object *))(void (*)(void))run_backward;
    return python->new_function(&engine, original, NULL);
}

// -- Calls -----------------------------------------------------------------

// Return the name of a module; none if it can't be named, NULL after a signal handler's exception.
static object *name_of(object *module) {
    object *key = python->new_number(module);
    object *name = key ? python->dict_item(python->names, key) : NULL;
    if (key)
        python->drop(key);
    if (name)
        return name; // nothing frees it, as gpt/layers keeps all names
    name = python->call(python->find, module, outer(), NULL);
    if (!name)
        return drop_error() ? python->none : NULL;
    python->drop(name);
    return name;
}

static bool tag_arguments(object *name, object *const *args, size_t count, object *keywords) {
    return tag(args, count + (keywords ? (size_t)python->tuple_size(keywords) : 0), name);
}

static object *call_module(object *function, object *const *args, size_t flags, object *keywords) {
    size_t count = flags << 1 >> 1; // the highest bit is another flag
    if (!count || setting || !hook_records_layers())
        return python->vectorcall(function, args, flags, keywords);
    object *name = name_of(args[0]);
    if (!name)
        return NULL;
    bool graph = is_true(python->is_grad_enabled);
    if (graph && !tag_arguments(backward_name(outer()), args + 1, count - 1, keywords))
        return NULL;
    end_region(); // an exception may have ended compiled code
    bool entered = name != python->none && gpt_hook_layer(python->text_of(name));
    object *before = inside; // in a local variable: greenlets swap the stack, so nothing may point to it
    inside = name;
    object *result = python->vectorcall(function, args, flags, keywords);
    inside = before;
    end_region();
    if (entered)
        gpt_hook_layer_end();
    if (result && graph && !tag(&result, 1, backward_name(name))) {
        python->drop(result);
        return NULL;
    }
    return result;
}

int gpt_hook_layer_outside(const char *name) { return !inside && !setting && gpt_hook_layer(name); }

// -- Functions that aren't modules -----------------------------------------

enum { NAMED = 1 << 10 }; // a power of two; at most half of them are used

static struct {
    object *function, *name; // name: of its range outside of modules, or NULL
    object *kind;            // kind of set-up that it does, or NULL
} named[NAMED];

static size_t find_named(object *function) {
    size_t at = (uintptr_t)function / sizeof(object *) * APART % NAMED;
    while (named[at].function && named[at].function != function)
        at = (at + 1) % NAMED;
    return at;
}

// Call a function that prepares the program's work. Its launches belong to the set-up, even within a module.
static object *set_up(object *kind, object *function, object *const *args, size_t flags, object *keywords) {
    object *around = region ? region : !inside && backward_module ? backward_module : outer();
    object *name = python->call(python->find_set_up, kind, around, NULL), *before = setting;
    if (!name) {
        if (!drop_error())
            return NULL;
        return python->vectorcall(function, args, flags, keywords);
    }
    python->drop(name); // nothing frees it
    object *waiting = delayed;
    setting = kind;
    delayed = gpt_hook_layer(python->text_of(name)) ? NULL : name;
    object *result = python->vectorcall(function, args, flags, keywords);
    if (!delayed)
        gpt_hook_layer_end();
    setting = before;
    delayed = waiting;
    return result;
}

// Call a function that loads the driver. Until then, nothing was recorded.
static object *load_driver(object *function, object *const *args, size_t flags, object *keywords) {
    object *result = python->vectorcall(function, args, flags, keywords);
    if (delayed && gpt_hook_layer(python->text_of(delayed)))
        delayed = NULL;
    return result;
}

static object *call_named(object *function, object *const *args, size_t flags, object *keywords) {
    size_t at = find_named(function);
    object *kind = named[at].kind, *name = named[at].name;
    if (!kind && !name)
        return load_driver(function, args, flags, keywords);
    if (kind && kind != setting)
        return set_up(kind, function, args, flags, keywords);
    if (kind || inside || setting || !hook_records_layers())
        return python->vectorcall(function, args, flags, keywords);
    bool graph = is_true(python->is_grad_enabled);
    if (graph && !tag_arguments(python->backward_pass, args, flags << 1 >> 1, keywords))
        return NULL;
    bool entered = gpt_hook_layer(python->text_of(name));
    object *result = python->vectorcall(function, args, flags, keywords);
    if (entered)
        gpt_hook_layer_end();
    if (result && graph && !tag(&result, 1, backward_name(name))) {
        python->drop(result);
        return NULL;
    }
    return result;
}

static bool set_vectorcall(object *function, gpt_vectorcall *to) {
    gpt_vectorcall **pointer = (void *)((char *)function + vectorcall_at);
    if (*pointer != python->vectorcall)
        return false;
    if (python->set_vectorcall) // it also tells the interpreter
        python->set_vectorcall(function, to);
    else
        *pointer = to;
    return *pointer == to;
}

int gpt_hook_name_calls(object *function, object *name, object *kind) {
    static size_t count;
    size_t at = find_named(function);
    if (named[at].function || ++count > NAMED / 2)
        return 0;
    named[at].function = function;
    named[at].name = name == python->none ? NULL : name;
    named[at].kind = kind == python->none ? NULL : kind;
    python->add_reference(function);
    python->add_reference(name);
    python->add_reference(kind);
    return set_vectorcall(function, call_named);
}

// -- Compiled code ---------------------------------------------------------

static object *name_of_site(object *site) {
    object *around = !inside && backward_module ? backward_module : outer();
    object *name = python->dict_item(site, around);
    if (name)
        return name;
    name = python->call(python->find_site, site, around, NULL);
    if (!name)
        return drop_error() ? python->none : NULL;
    python->drop(name); // nothing frees it
    return name;
}

static object *enter_region(object *self, object *site) {
    (void)self;
    if (!setting) {
        object *name = site != python->none && hook_records_layers() ? name_of_site(site) : python->none;
        end_region();
        if (!name)
            return NULL;
        if (name != python->none && gpt_hook_layer(python->text_of(name)))
            region = name;
    }
    python->add_reference(python->none);
    return python->none;
}

object *gpt_hook_new_region(void) {
    static struct method region = {"gpt_region", enter_region, METH_O, NULL};
    return python->new_function(&region, NULL, NULL);
}

int gpt_hook_wrap_calls(object *function, size_t place, const struct gpt_python *given) {
    if (*(gpt_vectorcall **)((char *)function + place) != given->vectorcall)
        return 0;
    saved = *given;
    vectorcall_at = place;
    for (object **one = &saved.none; one <= &saved.backward_pass; one++)
        saved.add_reference(*one);
    python = &saved;
    return set_vectorcall(function, call_module);
}
