"""Calls while nothing is recorded or probed: the driver sees only the program's frame."""

import pytest

from tests.runtime import hooked
from tests.runtime.controlling import Server, order

# A driver that stores the return address of its last caller.
DRIVER = r"""
#define API __attribute__((visibility("default")))
#define CALLED ({ caller = __builtin_return_address(0); 0; })
API void *caller;
API int cuInit(unsigned flags) { return 0; }
API int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
API int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)16, 0; }
API int cuCtxSetCurrent(void *context) { return 0; }
API int cuCtxGetCurrent(void **context) { return *context = (void *)16, 0; }
API int cuModuleLoadData(void **module, const void *image) { return *module = (void *)32, 0; }
API int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = (void *)48, 0; }
API int cuLaunchKernel(void *function) { return CALLED; }
API int cuLaunchKernel_ptsz(void *function) { return CALLED; }
API int cuLaunchKernelEx(void *config, void *function) { return CALLED; }
API int cuLaunchKernelEx_ptsz(void *config, void *function) { return CALLED; }
API int cuLaunchCooperativeKernel(void *function) { return CALLED; }
API int cuGraphLaunch(void *exec, void *stream) { return CALLED; }
API int cuGraphLaunch_ptsz(void *exec, void *stream) { return CALLED; }
API int cuMemcpyHtoDAsync_v2(unsigned long to, const void *from, unsigned long bytes, void *stream) { return CALLED; }
API int cuMemAllocAsync(unsigned long *to, unsigned long bytes, void *stream) { return CALLED; }
API int cuStreamSynchronize(void *stream) { return CALLED; }
API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return CALLED; }
API int cuEventRecord(void *event, void *stream) { return CALLED; }
"""

# Each line of the client's input says whether the driver should see the program's frame or the hook's.
CLIENT = r"""
#define CALL(name, ...) do { \
    int (*function)() = dlsym(driver, #name); \
    for (int i = 0; i < 2; i++) \
        OK(function(__VA_ARGS__)); /* the first launch of a kernel may be looked at */ \
    Dl_info one, other; \
    assert(dladdr(*caller, &one) && dladdr(main, &other)); \
    if (straight != (one.dli_fbase == other.dli_fbase)) \
        fprintf(stderr, "%s: called by %s\n", #name, one.dli_fname), abort(); \
} while (0)
int main(void) {
    char line[64];
    static uint64_t config[32], address;
    begin();
    void **caller = dlsym(driver, "caller"), *foo = kernel("foo");
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
        int straight = atoi(line);
        CALL(cuLaunchKernel, foo, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        CALL(cuLaunchKernel_ptsz, foo, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        CALL(cuLaunchKernelEx, config, foo, NULL, NULL);
        CALL(cuLaunchKernelEx_ptsz, config, foo, NULL, NULL);
        CALL(cuLaunchCooperativeKernel, foo, 1, 1, 1, 32, 1, 1, 0, NULL, NULL);
        CALL(cuGraphLaunch, config, NULL);
        CALL(cuGraphLaunch_ptsz, config, NULL);
        CALL(cuMemcpyHtoDAsync_v2, 0ul, config, 8ul, NULL);
        CALL(cuMemAllocAsync, &address, 8ul, NULL);
        CALL(cuStreamSynchronize, NULL);
        CALL(cuStreamWaitEvent, NULL, NULL, 0);
        CALL(cuEventRecord, NULL, NULL);
    }
}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    flags = (*hooked.SHARED, "-w", "-Wl,-soname,libcuda.so.1")
    hooked.compile_c(tmp_path / "driver/libcuda.so.1", DRIVER, *flags, prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "driver"))
    return hooked.compile_c(tmp_path / "client", CLIENT)


def test_disabled(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", device="real")
    for _ in range(2):
        server.launch(1)
        order(server.pid, "enable")
        server.launch(0)
        order(server.pid, "disable")
    server.launch(1)
    trace = server.end()
    assert trace.names["cuGraphLaunch"] == 2 * 2 * 2
    assert trace.launches == {"foo": 2 * 5 * 2}


@pytest.mark.parametrize("options", [("--disabled", "-p", "gmem_bytes"), ("--control", "--calls", "none")])
def test_launches_are_counted_unless_disabled(tmp_path, program, options):
    server = Server(tmp_path / "t.mp", program, *options, device="real")
    server.launch(1)
    trace = server.end()
    assert trace.launches == ({"foo": 5 * 2} if "none" in options else {})
