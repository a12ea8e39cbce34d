// Compiles the parts of runtime/common that the trace and its report need: the functions for our own files
// and descriptors, and the report on -k and --filter.

#include "common/selection.c"
#include "common/descriptors.c"
#include "common/own.c"
#include "common/private.c"
