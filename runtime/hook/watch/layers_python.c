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
static bool tagging = true;

// Thread-local. There's little room for such variables, and the program's other libraries need some of it.
static TLS object *inside;          // the name of the innermost module, or NULL outside of all
static TLS object *backward_module; // the open module of a backward pass, or NULL
static TLS uint32_t thread_number;
static TLS bool in_region; // a module is open in compiled code

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
    if (in_region)
        gpt_hook_layer_end();
    in_region = false;
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
    HOOK_HOLD_SIGNALS; // once for both records, as it takes two system calls
    end_backward();
    if (name != python->none && gpt_hook_layer(python->text_of(name)))
        backward_module = name;
    python->add_reference(python->none);
    return python->none;
}

static struct method method = {"gpt_layers", on_backward, METH_O, NULL};

// Return whether a node has no hook yet, and remember that it has. PyTorch numbers the nodes of a thread in
// the order of their creation. If two have the same place in the table, the first is forgotten.
static bool is_new(uint64_t number) {
    static _Atomic uint32_t threads;
    static _Atomic uint64_t tagged[TAGGED];
    if (!thread_number)
        thread_number = atomic_fetch_add(&threads, 1) + 1;
    uint64_t key = number | (uint64_t)thread_number << NUMBER_BITS;
    return atomic_exchange_explicit(&tagged[(number + thread_number) % TAGGED], key, memory_order_relaxed) !=
           key;
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
static object *node_of(object *tensor) {
    object *type = type_of(tensor);
    bool plain = (type == python->tensor || type == python->parameter) && !is_true(python->is_mode_enabled);
    return plain ? python->get_attribute(tensor, python->grad_fn)
                 : python->call(python->find_node, tensor, NULL);
}

// Assign the node that made a tensor to a module, unless the node belongs to one already.
static bool tag_tensor(object *tensor, object *name) {
    object *node = node_of(tensor), *number = NULL, *hook = NULL, *done = NULL;
    if (node == python->none) {
        python->drop(node);
        return true;
    }
    bool good = node && (number = python->call_method(node, python->sequence_nr, NULL));
    long long at = good ? python->number_of(number) : -1;
    good = at >= 0; // a node that accumulates gradients has the largest number there is
    if (good && is_new((uint64_t)at))
        good = (hook = python->new_function(&method, name, NULL)) &&
               (done = python->call_method(node, python->register_prehook, hook, NULL));
    object *ours[] = {done, hook, number, node};
    for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
        if (ours[i])
            python->drop(ours[i]);
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

static bool tag(object *value, object *name, int levels) {
    if (!tagging)
        return true;
    object *type = type_of(value), *items[MOST_ITEMS];
    if (type == python->tensor || python->is_subtype(type, python->tensor))
        return tag_tensor(value, name);
    unsigned long flags = python->flags_of(type);
    if (!(flags & (LIST | TUPLE | DICT)) || !levels)
        return true;
    bool good = true;
    int count = list_items(value, flags, items);
    for (int i = 0; i < count; i++) {
        good = good && tag(items[i], name, levels - 1);
        python->drop(items[i]);
    }
    return good;
}

static object *backward_name(object *name) {
    object *found = name == python->none ? NULL : python->dict_item(python->backward_names, name);
    return found ? found : python->none;
}

void gpt_hook_stop_tagging(void) { tagging = false; }

static object *run_backward(object *original, object *arguments, object *keywords) {
    // a thread of the engine may still be in a module of the pass before
    if (hook_records_layers() && python->tuple_size(arguments) &&
        !tag(python->tuple_item(arguments, 0), python->none, MOST_DEPTH))
        return NULL;
    object *result = python->call_with(original, arguments, keywords);
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

static bool tag_arguments(object *const *args, size_t count, object *keywords) {
    object *name = backward_name(outer());
    count += keywords ? (size_t)python->tuple_size(keywords) : 0;
    for (size_t i = 1; i < count; i++)
        if (!tag(args[i], name, MOST_DEPTH))
            return false;
    return true;
}

static object *call_module(object *function, object *const *args, size_t flags, object *keywords) {
    size_t count = flags << 1 >> 1; // the highest bit is another flag
    if (!count || !hook_records_layers())
        return python->vectorcall(function, args, flags, keywords);
    object *name = name_of(args[0]);
    if (!name)
        return NULL;
    if (is_true(python->is_grad_enabled) && !tag_arguments(args, count, keywords))
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
    if (result && is_true(python->is_grad_enabled) && !tag(result, backward_name(name), MOST_DEPTH)) {
        python->drop(result);
        return NULL;
    }
    return result;
}

int gpt_hook_layer_outside(const char *name) { return !inside && gpt_hook_layer(name); }

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
    object *name = site != python->none && hook_records_layers() ? name_of_site(site) : python->none;
    HOOK_HOLD_SIGNALS; // once for both records
    end_region();
    if (!name)
        return NULL;
    if (name != python->none)
        in_region = gpt_hook_layer(python->text_of(name));
    python->add_reference(python->none);
    return python->none;
}

object *gpt_hook_new_region(void) {
    static struct method region = {"gpt_region", enter_region, METH_O, NULL};
    return python->new_function(&region, NULL, NULL);
}

int gpt_hook_wrap_calls(object *function, size_t place, const struct gpt_python *given) {
    gpt_vectorcall **pointer = (void *)((char *)function + place);
    if (*pointer != given->vectorcall)
        return 0;
    saved = *given;
    for (object **one = &saved.none; one <= &saved.backward_names; one++)
        saved.add_reference(*one);
    python = &saved;
    if (given->set_vectorcall) // it also tells the interpreter
        given->set_vectorcall(function, call_module);
    else
        *pointer = call_module;
    return *pointer == call_module;
}
