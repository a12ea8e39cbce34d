// The variables of a module. Each .global variable is a separate allocation; all .const variables are in one,
// like a constant bank on a GPU.

#include <stdlib.h>
#include <string.h>

#include "run.h"

static const struct variable *find(const struct code *code, const char *name) {
    for (size_t i = 0; i < code->variable_count; i++)
        if (!strcmp(code->variables[i].name, name))
            return &code->variables[i];
    return NULL;
}

// Write an address that is part of an initial value. A function's address is the same in every module.
static void write_address(const struct variables *variables, const struct code *code, char *memory,
                          size_t size, const struct host_address *address) {
    const struct variable *to = find(code, address->symbol);
    uint64_t value = to ? variables->addresses[to - code->variables] : host_address_of(address->symbol);
    if (to && to->constant && !address->generic)
        value -= variables->constant;
    value = (value + (uint64_t)address->addend) >> (address->shift & 63);
    if (address->size <= sizeof(value) && address->offset <= size && address->size <= size - address->offset)
        memcpy(memory + address->offset, &value, address->size);
}

static void initialize(const struct variables *variables, const struct code *code) {
    for (size_t i = 0; i < code->variable_count; i++) {
        const struct variable *variable = &code->variables[i];
        char *memory = (char *)variables->addresses[i];
        if (variable->initial)
            memcpy(memory, variable->initial, variable->initial_size);
        for (size_t k = 0; k < variable->address_count; k++)
            write_address(variables, code, memory, variable->size, &variable->addresses[k]);
    }
}

static CUresult allocate(uint64_t *memory, size_t size, void *owner) {
    CUresult status = sim_allocate(memory, size, owner);
    if (!status)
        memset((void *)*memory, 0, size);
    return status;
}

// Place a variable in constant memory, after the variables that end at `end`.
static size_t place_constant(const struct variable *variable, size_t *end) {
    size_t align = variable->align ? variable->align : 1;
    size_t start = (*end + align - 1) / align * align;
    *end = start + variable->size;
    return start;
}

size_t sim_constant_size(const struct code *code) {
    size_t end = 0;
    for (size_t i = 0; i < code->variable_count; i++)
        if (code->variables[i].constant)
            place_constant(&code->variables[i], &end);
    return end;
}

CUresult sim_place_variables(struct variables *variables, const struct code *code, void *owner) {
    size_t window = 0;
    if (variables->addresses || !code->variable_count)
        return CUDA_SUCCESS;
    uint64_t *addresses = calloc(code->variable_count, sizeof(*addresses));
    if (!addresses)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < code->variable_count && !status; i++) {
        const struct variable *variable = &code->variables[i];
        if (variable->constant)
            addresses[i] = place_constant(variable, &window);
        else
            status = allocate(&addresses[i], variable->size, owner);
    }
    if (!status && window)
        status =
            window <= UINT32_MAX ? allocate(&variables->constant, window, owner) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) {
        free(addresses); // the memory goes with the module
        return status;
    }
    for (size_t i = 0; i < code->variable_count; i++)
        addresses[i] += code->variables[i].constant ? variables->constant : 0;
    variables->addresses = addresses;
    variables->constant_size = (uint32_t)window;
    initialize(variables, code);
    return CUDA_SUCCESS;
}

CUresult sim_bind_variables(const uint64_t **bound, struct variables *variables, const struct code *code,
                            void *owner, const struct host_module *module, const char **missing) {
    for (const struct bound *at = variables->bound; at; at = at->next)
        if (at->module == module) {
            *bound = at->addresses;
            return CUDA_SUCCESS;
        }
    CUresult status = sim_place_variables(variables, code, owner);
    if (status)
        return status;
    struct bound *made = malloc(sizeof(*made) + module->variable_count * sizeof(*made->addresses));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < module->variable_count; i++) {
        const struct variable *variable = find(code, *missing = module->variables[i].name);
        if (!variable) {
            free(made);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        uint64_t address = variables->addresses[variable - code->variables];
        made->addresses[i] = variable->constant ? address - variables->constant : address;
    }
    made->module = module;
    made->next = variables->bound;
    variables->bound = made;
    *bound = made->addresses;
    return CUDA_SUCCESS;
}

void sim_end_variables(struct variables *variables) {
    for (struct bound *at = variables->bound, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(variables->addresses);
}
