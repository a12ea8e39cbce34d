// Asking stages, as gpt-hook has it.

#include "../common/alone.c"
#include "../common/ask.c"
#include "../common/pass.c"
#include "../common/pipeline.c"
#include "../common/records.c"
