"""gpt-hook -p: one thread unloads a module while another one loads one of its kernels with probes."""

import os

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build
from tests.tiers import first

# `load` and `unload` belong to a module or a library.
SOURCE = (
    CLIENT
    + r"""
static void *context;
static volatile int done;
static _Atomic double since; // when the first thread began to wait for the device; 0: it does not

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *work(void *unused) {
    OK(cuCtxSetCurrent(context));
    %(load)s
    for (double begun; !(begun = since) || now() - begun < 0.2; usleep(1000)) // it loads the kernel with probes
        continue;
    %(unload)s
    done = 1;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(D(cuCtxGetCurrent)(&context));
    pthread_create(&thread, NULL, work, NULL);
    for (; !done; usleep(1000)) {
        since = now();
        OK(D(cuCtxSynchronize)());
        since = 0;
    }
    pthread_join(thread, NULL);
    OK(D(cuCtxSynchronize)());
    return 0;
}
"""
)
WAYS = {
    "module": {
        "load": 'OK(cuModuleLoadData(&module, text)); OK(cuModuleGetFunction(&function, module, "scale"));',
        "unload": "OK(D(cuModuleUnload)(module));",
    },
    "library": {
        "load": """OK(D(cuLibraryLoadData)(&module, text, NULL, NULL, 0, NULL, NULL, 0));
                   OK(D(cuLibraryGetKernel)(&function, module, "scale"));""",
        "unload": "OK(D(cuLibraryUnload)(module));",
    },
}


@pytest.mark.parametrize("way", first(*WAYS))
def test_module_is_not_unloaded_during_queries(tmp_path, way):
    """A real driver crashes if it's asked for a function that has been unloaded."""
    source = SOURCE
    for name, text in WAYS[way].items():
        source = source.replace(f"%({name})s", text)
    env = os.environ | {
        "GPT_SIM_RUN": "all", "GPT_SIM_STRICT": "1", "GPT_SIM_LOAD_DELAY": "500000",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    pipeline = "gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"
    options = ("--wait", "0", "--jit", pipeline)
    done = hooked.run(tmp_path / "t.mp", build(tmp_path, source), PTX, options=options, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert hooked.Trace(tmp_path / "t.mp").of("kernel")  # the kernel was built and loaded
