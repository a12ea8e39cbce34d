"""The three ways to the driver, and everything that the hook must not change."""

import ctypes
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import SHARED, Trace


def test_program_linked_to_the_driver(tmp_path):
    source = """
    int cuInit(unsigned);
    int cuDeviceGetCount(int *);
    int main(void) { int n; return cuInit(0) || cuDeviceGetCount(&n) || n != 1; }
    """
    program = tmp_path / "client"
    hooked.compile_c(program, source, hooked.runtime() / "sim" / "libcuda.so.1", prelude=False)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert Trace(tmp_path / "t.mp").names == {"cuInit": 1, "cuDeviceGetCount": 1}


def test_library_linked_to_the_driver_and_loaded_locally(tmp_path):
    library = tmp_path / "libextension.so"
    source = "int cuInit(unsigned);\nint start(void) { return cuInit(0); }"
    hooked.compile_c(library, source, *SHARED, hooked.runtime() / "sim" / "libcuda.so.1", prelude=False)
    client = f"""
    int main(void) {{
        void *handle = dlopen("{library}", RTLD_NOW | RTLD_LOCAL);
        if (!handle) puts(dlerror());
        return ((int (*)(void))dlsym(handle, "start"))();
    }}
    """
    assert hooked.traced(tmp_path, client).names == {"cuInit": 1}


def test_get_proc_address(tmp_path):
    source = r"""
    int main(void) {
        begin();
        int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
        int (*again)(const char *, void **, int, uint64_t, int *), status;
        int (*create)(void **, void *, unsigned, int), (*create2)(void **, unsigned, int), (*elapsed)(void);
        int (*version)(int *), (*thread_version)(int *), number;
        void *context, *none = &context;
        OK(get("cuGetProcAddress", (void **)&again, 13000, 0, &status));
        OK(again("cuCtxCreate", (void **)&create, 13000, 0, &status));
        OK(again("cuCtxCreate", (void **)&create2, 11000, 0, &status));
        assert(create != (void *)create2);
        OK(create(&context, 0, 0, 0));
        OK(create2(&context, 0, 0));
        OK(again("cuDriverGetVersion", (void **)&version, 13000, 0, &status));
        OK(again("cuDriverGetVersion", (void **)&thread_version, 13000, 2, &status));
        OK(version(&number));
        OK(again("cuOfTomorrow", &none, 13000, 0, &status));
        assert(!none && status == 1);
        return 0;
    }
    """
    trace = hooked.traced(tmp_path, source)
    assert trace.names["cuGetProcAddress"] == 6
    made = [call["symbol"] for call in trace.calls if call["name"] == "cuCtxCreate"]
    assert made == ["cuCtxCreate_v4", "cuCtxCreate_v2"]
    assert trace.names["cuDriverGetVersion"] == 1


def test_export_tables_are_left_alone(tmp_path):
    source = r"""
    int main(void) {
        begin();
        int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
        void *one = dlsym(driver, "cuGetExportTable"), *two;
        OK(get("cuGetExportTable", &two, 13000, 0, 0));
        Dl_info info;
        assert(one == two && dladdr(one, &info) && strstr(info.dli_fname, "libcuda.so.1"));
    }
    """
    hooked.traced(tmp_path, source)


# In this program, another thread holds a lock of the dynamic linker while it waits for calls of the driver. A library's
# constructor runs under one lock, and the callback of dl_iterate_phdr under another.
HOLDER = r"""
#include <sched.h>
extern _Atomic int held, done;
#define HOLD() do { held = 1; while (!done) sched_yield(); } while (0)
__attribute__((constructor)) static void hold(void) { HOLD(); }
"""
UNDER_LOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#define PTX ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(){ret;}\n"
_Atomic int held, done;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *,
                   void *);
static int hold(struct dl_phdr_info *info, size_t size, void *data) {
    held = 1;
    while (!done) sched_yield();
    return 1;
}
static void *take(void *library) {
    if (*(char *)library) dlopen(library, RTLD_NOW);
    else dl_iterate_phdr(hold, 0);
    return 0;
}
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, 0, take, argv[1]);
    while (!held) sched_yield();
    void *context, *module, *function;
    int bad = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
              cuModuleLoadData(&module, PTX) || cuModuleGetFunction(&function, module, "foo") ||
              cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    if (argc > 2) _exit(bad);
    done = 1;
    pthread_join(thread, 0);
    return bad;
}
"""


@pytest.mark.parametrize("lock", ["constructor", "dl_iterate_phdr"])
@pytest.mark.parametrize("end", [(), ("_exit",)])
def test_calls_while_another_thread_holds_a_lock_of_the_linker(tmp_path, lock, end):
    library = hooked.compile_c(tmp_path / "libholder.so", HOLDER, *SHARED, prelude=False)
    driver = hooked.runtime() / "sim" / "libcuda.so.1"
    program = hooked.compile_c(tmp_path / "client", UNDER_LOCKS, "-rdynamic", driver, prelude=False)
    args = (library if lock == "constructor" else "", *end)
    done = hooked.run(tmp_path / "t.mp", program, *args)
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.names["cuLaunchKernel"] == 1 and trace.records[-1]["kind"] == "end"
    assert any(r["path"].endswith("libcuda.so.1") for r in trace.of("library"))


# A library that shares a GPU among programs: it defines its own dlsym, which returns its own functions.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *(*real_dlsym)(void *, const char *);
static int (*init)(unsigned), (*version)(int *), (*find)(const char *, void **, int, unsigned long, void *), calls[2];
static int shim_init(unsigned flags) { calls[0]++; return init(flags); }
static int shim_version(int *number) { calls[1]++; return version(number); }
static void *replace(const char *name, void *real) {
    if (!strcmp(name, "cuInit")) { init = real; return shim_init; }
    if (!strcmp(name, "cuDriverGetVersion")) { version = real; return shim_version; }
    return 0;
}
static int shim_find(const char *name, void **function, int wanted, unsigned long flags, void *status) {
    int result = find(name, function, wanted, flags, status);
    void *ours = replace(name, *function);
    if (ours) *function = ours;
    return result;
}
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT) return real_dlsym(handle, name);
    void *real = real_dlsym(handle, name), *ours = real ? replace(name, real) : 0;
    if (real && !strcmp(name, "cuGetProcAddress_v2")) { find = real; return shim_find; }
    return ours ? ours : real;
}
__attribute__((destructor)) static void tell(void) { printf("shim: %d %d\n", calls[0], calls[1]); }
"""
SHIMMED = r"""
int main(void) {
    begin();
    int (*find)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2"), number, status;
    for (int i = 0; i < 3; i++) OK(cuDriverGetVersion(&number));
    OK(find("cuDriverGetVersion", (void **)&cuDriverGetVersion, 13000, 0, &status));
    for (int i = 0; i < 4; i++) OK(cuDriverGetVersion(&number));
    launch(kernel("foo"));
    dlclose(driver);
}
"""


@pytest.mark.parametrize("order", ["theirs after ours", "theirs before ours"])
def test_another_library_with_its_own_dlsym(tmp_path, monkeypatch, order):
    shim = hooked.compile_c(tmp_path / "libshim.so", SHIM, *SHARED, "-fvisibility=hidden", prelude=False)
    program = hooked.compile_c(tmp_path / "client", SHIMMED)
    line = [program]
    if order == "theirs after ours":
        monkeypatch.setenv("LD_PRELOAD", str(shim))
    else:
        line = ["sh", "-c", f'LD_PRELOAD="{shim}:$LD_PRELOAD" exec "{program}"']
    done = hooked.run(tmp_path / "t.mp", *line)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "shim: 1 7"
    names = Trace(tmp_path / "t.mp").names
    assert (names["cuInit"], names["cuDriverGetVersion"], names["cuLaunchKernel"]) == (1, 7, 1)


# A library in between that doesn't define dlsym: it defines a function, and looks the driver's up by handle.
def test_interposer_calls_the_driver(tmp_path, monkeypatch):
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    static int calls;
    int cuInit(unsigned flags) {
        calls++;
        return ((int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"))(flags);
    }
    __attribute__((destructor)) static void tell(void) { printf("%d", calls); }
    """
    library = hooked.compile_c(tmp_path / "libbetween.so", source, *SHARED, prelude=False)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    client = "int cuInit(unsigned);\nint main(void) { return cuInit(0) || cuInit(0); }"
    driver = hooked.runtime() / "sim" / "libcuda.so.1"
    program = hooked.compile_c(tmp_path / "client", client, driver, prelude=False)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2", "")
    assert Trace(tmp_path / "t.mp").names == {"cuInit": 2}


# What stays as it is


def test_dlsym_without_a_driver(tmp_path):
    source = r"""
    int main(void) {
        assert(!dlopen("libcuda.so.1", RTLD_NOW));
        assert(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror());
        assert(!dlsym(dlopen(0, RTLD_NOW), "cuInit") && dlerror());
        assert(!dlsym(RTLD_NEXT, "cuOfTomorrow") && dlerror());
        assert(!dlsym(RTLD_NEXT, "cuInit") && dlerror());
        assert(dlsym(RTLD_DEFAULT, "malloc") && !dlerror());
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    done = hooked.run(tmp_path / "t.mp", program, device="real")
    if "libcuda" in done.stderr:
        pytest.skip("there is a driver here")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_where_the_driver_was(tmp_path, monkeypatch):
    both = "int cuInit(unsigned flags) { return flags != 0; } int cuOther(void) { return 3; }"
    for name in ("libcuda.so.1", "libother.so"):
        hooked.compile_c(tmp_path / name, both, *SHARED, f"-Wl,-soname,{name}", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    source = r"""
    int main(void) {
        int (*init)(unsigned), (*other)(void);
        for (int i = 0; i < 3; i++) {
            driver = dlopen("libcuda.so.1", RTLD_NOW);
            assert((init = dlsym(driver, "cuInit")) && !init(0) && !dlclose(driver));
            driver = dlopen("libother.so", RTLD_NOW);
            assert((other = dlsym(driver, "cuOther")) && other() == 3 && !dlclose(driver));
        }
    }
    """
    assert hooked.traced(tmp_path, source, device="real").names == {"cuInit": 3}


@pytest.mark.parametrize("calls", ["all", "none", "cuInit"])
def test_driver_closed_and_reloaded_elsewhere(tmp_path, monkeypatch, calls):
    functions = "int cuInit(unsigned f) { return f; } int cuDriverGetVersion(int *v) { *v = 13000; return 0; }"
    hooked.compile_c(tmp_path / "libcuda.so.1", functions, *SHARED, "-Wl,-soname,libcuda.so.1", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    linked = """
    int cuInit(unsigned), cuDriverGetVersion(int *);
    int play(void) { int v; return cuInit(0) | cuDriverGetVersion(&v) | v; }
    """
    library = hooked.compile_c(tmp_path / "libplugin.so", linked, *SHARED, tmp_path / "libcuda.so.1", prelude=False)
    source = f"""
    #include <sys/mman.h>
    int main(void) {{
        for (int i = 0; i < 4; i++) {{
            void *plugin = dlopen("{library}", RTLD_NOW | RTLD_LOCAL);
            assert(plugin && ((int (*)(void))dlsym(plugin, "play"))() == 13000 && !dlclose(plugin));
            mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); // the old range stays occupied
        }}
    }}
    """
    trace = hooked.traced(tmp_path, source, device="real", options=("--calls", calls))
    assert trace.names == {"all": {"cuInit": 4, "cuDriverGetVersion": 4}, "none": {}, "cuInit": {"cuInit": 4}}[calls]


def test_rtld_next_and_default_mean_what_they_mean_to_the_caller(tmp_path):
    # Two libraries in the global scope each define `which`; a third one has its own scope. dlsym identifies its caller
    # by the return address, so no function here may end with a tail call.
    which = 'const char *which(void) {{ return "{}"; }}\n'
    ask = '#include <dlfcn.h>\nconst char *ask(void) { return ((const char *(*)(void))dlsym(RTLD_NEXT, "which"))(); }\n'
    default = """
    #include <dlfcn.h>
    void *ask_default(const char *name) { void *volatile found = dlsym(RTLD_DEFAULT, name); return found; }
    """
    flags = (*SHARED, "-D_GNU_SOURCE")
    hooked.compile_c(tmp_path / "libsecond.so", which.format("second"), *flags, prelude=False)
    hooked.compile_c(tmp_path / "libfirst.so", which.format("first") + ask, *flags, "-L", tmp_path, prelude=False)
    hooked.compile_c(
        tmp_path / "liblocal.so",
        default + "int only_here;",
        *flags,
        "-Wl,--no-as-needed",
        hooked.runtime() / "sim" / "libcuda.so.1",
        prelude=False,
    )
    source = f"""
    const char *which(void), *ask(void);
    int main(void) {{
        assert(!strcmp(which(), "first") && !strcmp(ask(), "second"));
        void *(*find)(const char *) = dlsym(dlopen("{tmp_path}/liblocal.so", RTLD_NOW), "ask_default");
        assert(find("only_here") && !dlsym(RTLD_DEFAULT, "only_here"));
        int (*init)(unsigned) = find("cuInit"); // in that library's scope only
        assert(init && !dlsym(RTLD_DEFAULT, "cuInit"));
        return init(0);
    }}
    """
    links = ("-Wl,--no-as-needed", "-L", tmp_path, "-lfirst", "-lsecond", f"-Wl,-rpath,{tmp_path}")
    assert hooked.traced(tmp_path, source, *links).names == {"cuInit": 1}


def test_runpath_of_the_caller_counts(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    hooked.compile_c(inner / "libdeep.so", "int deep = 7;", *SHARED, prelude=False)
    opener = (
        '#include <dlfcn.h>\nvoid *open_deep(void) { void *volatile p = dlopen("libdeep.so", RTLD_NOW); return p; }'
    )
    hooked.compile_c(
        tmp_path / "libopener.so", opener, *SHARED, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/inner", prelude=False
    )
    source = """
    void *open_deep(void);
    int main(void) {
        assert(!dlopen("libdeep.so", RTLD_NOW));
        void *handle = open_deep();
        assert(handle && *(int *)dlsym(handle, "deep") == 7);
        return dlclose(handle);
    }
    """
    links = ("-L", tmp_path, "-lopener", f"-Wl,-rpath,{tmp_path}")
    program = hooked.compile_c(tmp_path / "client", source, *links)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_symbols_need_no_newer_libc():
    for file in ("gpt-hook", "libgpthook.so", "sim/libcuda.so.1"):
        text = subprocess.run(["readelf", "--dyn-syms", "-W", hooked.runtime() / file], capture_output=True, text=True)
        versions = {word.split("GLIBC_")[1].strip("()") for word in text.stdout.split() if "@GLIBC_" in word}
        assert versions and max(tuple(map(int, v.split("."))) for v in versions) <= (2, 34), file


def test_library_defines_only_replaced_functions():
    text = subprocess.run(
        ["nm", "-D", "--defined-only", hooked.runtime() / "libgpthook.so"], capture_output=True, text=True
    )
    names = {line.split()[2] for line in text.stdout.splitlines()} - {"GLIBC_2.2.5", "GLIBC_2.34"}
    stands_in = {
        "dlsym@GLIBC_2.2.5",
        "dlsym@@GLIBC_2.34",
        "dlopen@GLIBC_2.2.5",
        "dlopen@@GLIBC_2.34",
        "dlclose",
        "vfork",
        "_exit",
        "_Exit",
        "quick_exit",
        "ioctl",
        "sigaction",
        "signal",
        *("execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve", "execveat"),
        *("posix_spawn", "posix_spawnp", "system", "popen"),
    }
    nvtx = {"InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension"}
    layers = (
        "layer",
        "layer_end",
        "layer_outside",
        "wrap_calls",
        "name_calls",
        "wrap_backward",
        "new_node_hook",
        "new_region",
        "stop_tagging",
    )
    called = nvtx | {f"gpt_hook_{name}" for name in ("tensor", "tensor_end", *layers)}
    assert {name for name in names if not name.startswith("cu")} == stands_in | called


UNREADABLE = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ERROR), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, code}, 0, 0));
    begin();
    char *image = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *module, *function;
    strcpy(image, PTX);
    mprotect(image + 4096, 4096, PROT_NONE);
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "foo"));
    launch(function);
}
"""


ALONE = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(void) {
    begin();
    void *f = kernel("foo");
    int version, status = 0;
    launch(f);
    OK(cuDriverGetVersion(&version));
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){5, code}, 0, 0));
    for (int i = 0; i < 3; i++)
        OK(cuDriverGetVersion(&version));
    assert(dlsym(driver, "cuMemAlloc_v2") && dlsym(driver, "cuMemcpyHtoD_v2") && dlsym(driver, "cuInit"));
    assert(!dlsym(driver, "cuOfTomorrow") && dlsym(RTLD_DEFAULT, "malloc") && !dlsym(RTLD_NEXT, "cuInit"));
    write(1, "all", 3);
    syscall(SYS_exit_group, 0);
}
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "_dl_find_object"), reason="glibc before 2.35")
@pytest.mark.parametrize("calls", ["all", "none"])
def test_filter_that_permits_nothing(tmp_path, calls):
    program = hooked.compile_c(tmp_path / "client", ALONE)
    done = hooked.run(tmp_path / "t.mp", program, options=("--calls", calls))
    assert (done.returncode, done.stdout, done.stderr) == (0, "all", "")


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_where_process_vm_readv_is_not_permitted(tmp_path, error):
    trace = hooked.traced(tmp_path, UNREADABLE, f"-DERROR={error}")
    assert trace.launches == {"foo": 1} and trace.names["cuInit"] == 1
    assert any(library["path"].endswith("libcuda.so.1") for library in trace.of("library"))
    (module,) = trace.of("module")
    assert len(module["sha256"]) == 64
