"""A client that launches the kernel `ends`, whose threads leave a block in several ways, with given shapes."""

from tests.runtime import probing

PTX = probing.PTX.with_name("totals.ptx")
CLIENT = r"""
int main(int argc, char **argv) {
    static char text[1 << 14];
    void *module, *function, *stream, *graph, *exec;
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&function, module, "ends"));
    OK(D(cuStreamCreate)(&stream, 1));
    for (int i = 3; i + 2 < argc; i += 3) {
        unsigned blocks = (unsigned)atoi(argv[i]), threads = (unsigned)atoi(argv[i + 1]);
        unsigned apart = (unsigned)atoi(argv[i + 2]);
        void *params[] = {&apart};
        if (!strcmp(argv[2], "graph")) {
            OK(D(cuStreamBeginCapture_v2)(stream, 0));
            OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
            OK(D(cuStreamEndCapture)(stream, &graph));
            OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
            OK(D(cuGraphLaunch)(exec, stream));
            OK(D(cuGraphLaunch)(exec, stream));
        } else {
            void *where = strcmp(argv[2], "stream") ? NULL : stream;
            OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, where, params, NULL));
        }
    }
    OK(D(cuCtxSynchronize)());
    return 0;
}
"""
