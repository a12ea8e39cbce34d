"""Libraries that find the driver before the hook: opened with RTLD_DEEPBIND, or in a namespace of dlmopen."""

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import Trace

SHARED = ("-shared", "-fPIC", "-D_GNU_SOURCE")

# Plugins, by the way in which they find the driver. Each makes two calls when it starts.
LINKED = """
int cuInit(unsigned), cuDriverGetVersion(int *);
int start(void) { int version; return cuInit(0) || cuDriverGetVersion(&version); }
"""
TABLE = """
int cuInit(unsigned), cuDriverGetVersion(int *);
static const struct { int (*init)(unsigned), (*version)(int *); } *volatile table =
    &(const typeof(*table)){cuInit, cuDriverGetVersion};
int start(void) { int version; return table->init(0) || table->version(&version); }
"""
ASKS = """
#include <dlfcn.h>
int start(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*number)(int *) = dlsym(driver, "cuDriverGetVersion"), version;
    return init(0) || number(&version) || dlclose(driver);
}
"""
LINKS = {"now": ("-Wl,-z,now",), "lazy": ("-Wl,-z,lazy",), "no relro": ("-Wl,-z,norelro",)}
CLIENT = r"""
int main(int argc, char **argv) {
    void *plugin = OPEN;
    if (!plugin) puts(dlerror());
    int (*start)(void) = dlsym(plugin, "start");
    return start() || dlclose(plugin);
}
"""


def build(tmp_path, source, *flags):
    """Build a plugin in the form that its target expects: linked to the simulated driver if it doesn't look the driver
    up itself.
    """
    driver = () if "dlopen" in source else (hooked.runtime() / "sim" / "libcuda.so.1",)
    return hooked.compile_c(tmp_path / "libplugin.so", source, *SHARED, *flags, *driver, prelude=False)


@pytest.mark.parametrize(
    ("source", "link", "when"),
    [
        (LINKED, "now", "RTLD_NOW"),
        (LINKED, "lazy", "RTLD_LAZY"),
        (LINKED, "no relro", "RTLD_NOW"),
        (TABLE, "now", "RTLD_NOW"),
        (ASKS, "now", "RTLD_NOW"),
        (ASKS, "lazy", "RTLD_LAZY"),
    ],
)
def test_self_binding_library_is_hooked(tmp_path, source, link, when):
    plugin = build(tmp_path, source, *LINKS[link])
    client = CLIENT.replace("OPEN", f'dlopen("{plugin}", {when} | RTLD_DEEPBIND)')
    assert hooked.traced(tmp_path, client).names == {"cuInit": 1, "cuDriverGetVersion": 1}


def test_its_own_functions_stay_its_own(tmp_path):
    source = LINKED.replace("int start", "int cuDriverGetVersion(int *version) { return *version = 0; }\nint start")
    plugin = build(tmp_path, source)
    client = CLIENT.replace("OPEN", f'dlopen("{plugin}", RTLD_NOW | RTLD_DEEPBIND)')
    assert hooked.traced(tmp_path, client).names == {"cuInit": 1}


@pytest.mark.parametrize("end", ["return 0;", "_exit(0);", "dlclose(plugin); _exit(0);"])
@pytest.mark.parametrize("source", [LINKED, ASKS])
def test_a_library_in_its_own_namespace_is_reported(tmp_path, source, end):
    plugin = build(tmp_path, source)
    client = CLIENT.replace("OPEN", f'dlmopen(LM_ID_NEWLM, "{plugin}", RTLD_NOW)')
    client = client.replace("return start() || dlclose(plugin);", f"assert(!start()); {end}")
    if source == ASKS:
        source = source.replace(" || dlclose(driver)", "")
        plugin = build(tmp_path, source)
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", client))
    assert done.returncode == 0
    driver = hooked.runtime() / "sim" / "libcuda.so.1"
    fact = "loaded by dlmopen, so calls from libraries in its namespace are not recorded"
    assert done.stderr == f"gpt-hook: warning: {driver}: {fact}\n"
    trace = Trace(tmp_path / "t.mp")
    (diag,) = trace.of("diag")
    assert (diag["level"], diag["where"], diag["text"]) == ("warning", str(driver), fact)
    assert trace.records[-1]["kind"] == "end" and not trace.calls


def test_a_namespace_without_a_driver_is_ignored(tmp_path):
    plugin = hooked.compile_c(tmp_path / "libplugin.so", "int start(void) { return 0; }", *SHARED, prelude=False)
    client = CLIENT.replace("OPEN", f'dlmopen(LM_ID_NEWLM, "{plugin}", RTLD_NOW)')
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", client))
    assert (done.returncode, done.stderr) == (0, "") and not (tmp_path / "t.mp").exists()
