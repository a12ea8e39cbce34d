// The parts of runtime/common that the trace and its report use: our own files, and the report on -k and
// --filter.

#include "common/selection.c"
#include "common/own.c"
#include "common/private.c"
