// The parts of runtime/common that ask stages, as gpt-hook does.

#include "../common/ask.c"
#include "../common/descriptors.c"
#include "../common/fd_passing.c"
#include "../common/own.c"
#include "../common/peers.c"
#include "../common/pipeline.c"
#include "../common/records.c"
#include "../common/run_pipeline.c"
