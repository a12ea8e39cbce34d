// What the trace and its report have of runtime/common: files of our own, and what -k and --filter left.

#include "common/selection.c"
#include "common/own.c"
#include "common/private.c"
