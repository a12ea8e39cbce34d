// Asking stages, as gpt-hook has it.

#include "../common/ask.c"
#include "../common/fd_passing.c"
#include "../common/pipeline.c"
#include "../common/records.c"
#include "../common/run_pipeline.c"
