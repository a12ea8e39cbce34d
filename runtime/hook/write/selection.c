// What the hook has of runtime/common for its report.

#include "common/selection.c"
