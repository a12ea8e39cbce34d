"""NVTX ranges and marks from a program that imitates NVTX, from NVIDIA's headers, and from the Python package."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests import cuda
from tests.runtime import hooked
from tests.runtime.clients import PLAYED
from tests.runtime.hooked import Trace
from tests.runtime.ranges import ABI, told


def played(tmp_path, more: str, **options) -> Trace:
    return hooked.traced(tmp_path, PLAYED.replace("MORE", more), f"-I{ABI.parents[1]}", **options)


def test_ranges_and_marks(tmp_path):
    more = r"""
    void *domain = F(core2, CORE2_DomainCreateA, void *, "dom");
    void *wide = F(core2, CORE2_DomainCreateW, void *, L"w\u00e4it\U0001f600");
    void *text = F(core2, CORE2_DomainRegisterStringA, void *, domain, "registered");
    nvtxEventAttributes_t event = {3, sizeof(event), 5, 0, 0, 0, 0, 0, NVTX_MESSAGE_TYPE_REGISTERED, text};
    assert(F(core, CORE_RangePushA, int, "outer") == 0);
    assert(F(core2, CORE2_DomainRangePushEx, int, domain, &event) == 0);
    assert(F(core, CORE_RangePushW, int, L"inner") == 1);
    uint64_t id = F(core, CORE_RangeStartA, uint64_t, "process"), other;
    assert(F(core, CORE_RangePop, int) == 1 && F(core, CORE_RangePop, int) == 0);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE, event.message = L"unicode", event.category = 0;
    other = F(core2, CORE2_DomainRangeStartEx, uint64_t, wide, &event);
    assert(id && other && id != other);
    F(core2, CORE2_DomainMarkEx, void, wide, &event);
    F(core, CORE_MarkA, void, "mark");
    F(core, CORE_RangeEnd, void, id);
    F(core2, CORE2_DomainRangeEnd, void, wide, other);
    assert(F(core2, CORE2_DomainRangePop, int, domain) == 0 && F(core2, CORE2_DomainRangePop, int, domain) == -1);
    event.size = 8;
    F(core, CORE_MarkEx, void, &event);
    F(core, CORE_MarkEx, void, 0);
    """
    trace = played(tmp_path, more)
    assert told(trace) == [
        ("push", None, "outer"),
        ("push", "dom", "registered"),
        ("push", None, "inner"),
        ("start", None, "process"),
        ("end", None, "inner"),
        ("end", None, "outer"),
        ("start", "wäit😀", "unicode"),
        ("mark", "wäit😀", "unicode"),
        ("mark", None, "mark"),
        ("end", None, "process"),
        ("end", "wäit😀", "unicode"),
        ("end", "dom", "registered"),
        ("mark", None, None),
        ("mark", None, None),
    ]
    ranges = trace.of("range")
    assert [r.get("category") for r in ranges][:3] == [None, 5, None]
    assert all(r["thread"] == trace.records[0]["pid"] for r in ranges) and trace.records[-1]["kind"] == "end"
    starts = [r["start"] for r in ranges]
    assert starts == sorted(starts) and trace.records[0]["tsc" if "tsc" in trace.records[0] else "monotonic"]


def test_deep_ranges_and_long_names(tmp_path):
    more = r"""
    static char name[1 << 20];
    memset(name, 'x', sizeof(name) - 1);
    for (int i = 0; i < 1000; i++)
        F(core, CORE_RangePushA, int, i ? "deep" : name);
    for (int i = 0; i < 1000; i++)
        assert(F(core, CORE_RangePop, int) >= 0);
    assert(F(core, CORE_RangePop, int) == -1);
    for (int i = 0; i < 10000; i++) {
        snprintf(name, 2000, "%01999d", i);
        F(core2, CORE2_DomainRegisterStringA, void *, 0, name); // more than is kept
    }
    """
    trace = played(tmp_path, more)
    assert len(trace.of("range")) == len(trace.of("range_end")) == 64
    assert trace.of("range")[0]["name"] == "x" * 1024


def test_range_open_in_killed_process(tmp_path):
    source = PLAYED.replace("MORE", 'F(core, CORE_RangePushA, int, "fatal"); kill(getpid(), 9);')
    program = hooked.compile_c(tmp_path / "client", source, f"-I{ABI.parents[1]}", "-includesignal.h")
    assert hooked.run(tmp_path / "t.mp", program).returncode == -signal.SIGKILL
    assert told(Trace(tmp_path / "t.mp")) == [("push", None, "fatal")]


def test_nvtx_injection_keeps_the_other_tool(tmp_path):
    line = hooked.command("run", "-o", tmp_path / "t.mp", "sh", "-c", "echo $NVTX_INJECTION64_PATH $GPT_HOOK_NVTX")
    ours = f"{hooked.runtime()}/libgpthook.so"
    for given, expected in (("/other.so", f"{ours} /other.so"), ("", ours), (ours, ours)):
        done = subprocess.run(
            line, capture_output=True, text=True, env={"NVTX_INJECTION64_PATH": given, "PATH": "/bin"}
        )
        assert done.stdout == f"{expected}\n"


# A tool that records the calls it gets. It has no functions for wide text, and none for marks.
OTHER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "abi/nvtx.h"
#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
static char handles[8][64];
static int count;
static void *keep(const char *text) { return strcpy(handles[count++], text); }
static void *create(const char *name) { return SAY("create %s\n", name), keep(name); }
static void *registered(void *domain, const char *text) { return SAY("register %s\n", text), keep(text); }
static int pushed(const char *text) { return SAY("push %s\n", text), 40; }
static int popped(void) { return SAY("pop\n"), 39; }
static int domain_pushed(char *domain, const nvtxEventAttributes_t *event) {
    return SAY("push %s %s\n", domain, (const char *)event->message), 50;
}
static int domain_popped(char *domain) { return SAY("pop %s\n", domain), 49; }
static uint64_t started(const char *text) { return SAY("start %s\n", text), 1000 + count++; }
static void ended(uint64_t id) { SAY("end %d\n", (int)id); }
static void put(nvtx_function ***table, int id, void *function) { *table[id] = (nvtx_function *)function; }
int InitializeInjectionNvtx2(nvtx_get_export_table *get) {
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    nvtx_function ***table;
    unsigned size;
    callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size);
    put(table, NVTX_CBID_CORE_RangePushA, pushed), put(table, NVTX_CBID_CORE_RangePop, popped);
    put(table, NVTX_CBID_CORE_RangeStartA, started), put(table, NVTX_CBID_CORE_RangeEnd, ended);
    callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size);
    put(table, NVTX_CBID_CORE2_DomainCreateA, create);
    put(table, NVTX_CBID_CORE2_DomainRegisterStringA, registered);
    put(table, NVTX_CBID_CORE2_DomainRangePushEx, domain_pushed);
    put(table, NVTX_CBID_CORE2_DomainRangePop, domain_popped);
    return BEGINS;
}
"""
USED = r"""
    void *domain = F(core2, CORE2_DomainCreateA, void *, "dom");
    void *text = F(core2, CORE2_DomainRegisterStringA, void *, domain, "registered");
    nvtxEventAttributes_t event = {3, sizeof(event), 0, 0, 0, 0, 0, 0, NVTX_MESSAGE_TYPE_REGISTERED, text};
    int levels[] = {F(core, CORE_RangePushA, int, "outer"), F(core2, CORE2_DomainRangePushEx, int, domain, &event)};
    printf("%d %d\n", levels[0], levels[1]), fflush(stdout);
    long first = F(core, CORE_RangeStartA, uint64_t, "one"), second = F(core, CORE_RangeStartA, uint64_t, "two");
    F(core, CORE_RangeEnd, void, first), F(core, CORE_RangeEnd, void, second);
    F(core, CORE_MarkA, void, "mark");
    int last[] = {F(core2, CORE2_DomainRangePop, int, domain), F(core, CORE_RangePop, int)};
    printf("%d %d\n", last[0], last[1]), fflush(stdout);
"""
TOLD = [
    ("push", None, "outer"), ("push", "dom", "registered"), ("start", None, "one"), ("start", None, "two"),
    ("end", None, "one"), ("end", None, "two"), ("mark", None, "mark"), ("end", "dom", "registered"),
    ("end", None, "outer"),
]  # fmt: skip


def played_beside(tmp_path, begins, monkeypatch, used=USED):
    flags = ["-shared", "-fPIC", f"-I{ABI.parents[1]}", f"-DBEGINS={begins}", "-Wno-unused-parameter"]
    other = hooked.compile_c(tmp_path / "other.so", OTHER, *flags, prelude=False)
    program = hooked.compile_c(tmp_path / "client", PLAYED.replace("MORE", used), f"-I{ABI.parents[1]}")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(other))
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    return told(Trace(tmp_path / "t.mp")), done.stdout.splitlines()


def test_another_tool_gets_the_ranges_too(tmp_path, monkeypatch):
    ranges, lines = played_beside(tmp_path, 1, monkeypatch)
    assert ranges == TOLD
    assert lines == ["create dom", "register registered", "push outer", "push dom registered", "40 50", "start one",
                     "start two", "end 1002", "end 1003", "pop dom", "pop", "49 39"]  # fmt: skip


def test_another_tool_that_does_not_begin_is_left_out(tmp_path, monkeypatch):
    ranges, lines = played_beside(tmp_path, 0, monkeypatch)
    assert ranges == TOLD and lines == ["0 0", "0 0"]


def test_tables_that_another_tool_sets_in_another_way_stay_as_they_are(tmp_path, monkeypatch):
    second = """
    memset(core, 0, sizeof(core)), memset(core2, 0, sizeof(core2));
    setenv("GPT_HOOK_NVTX", "/none.so", 1);
    assert(initialize(get_export) == 1 && !core[NVTX_CBID_CORE_RangePushA] && core[NVTX_CBID_CORE_MarkA]);
    """
    ranges, lines = played_beside(tmp_path, 1, monkeypatch, USED + second)
    assert ranges == TOLD and lines[-1] == "49 39"


@pytest.mark.full
def test_abi_is_that_of_the_headers(tmp_path, nvtx_wheels):
    text = re.sub(r"//.*", "", ABI.read_text())
    said = re.findall(r"\b(?!NVTX_OLDEST)(NVTX\w+) = (0x\w+|\d+)", text)
    said += re.findall(r"#define (NVTX\w+) (.+)", text)
    lines = [f'_Static_assert({name} == {value}, "{name}");' for name, value in said]
    assert len(lines) > 50
    text = re.sub(r"#define NVTX.*", "", text)
    for struct, members in (
        (
            "nvtxEventAttributes_t",
            "version size category colorType color payloadType reserved0 payload messageType message",
        ),
        ("NvtxExportTableCallbacks", "struct_size GetModuleFunctionTable"),
        ("nvtxExtModuleSegment_t", "segmentId slotCount functionSlots"),
        (
            "nvtxExtModuleInfo_t",
            "nvtxVer structSize moduleId compatId segmentsCount segments getExportFunction extInfo",
        ),
        ("nvtxPayloadData_t", "schemaId size payload"),
        (
            "nvtxPayloadSchemaEntry_t",
            "flags type name description arrayOrUnionDetail offset semantics reserved",
        ),
        (
            "nvtxPayloadSchemaAttr_t",
            "fieldMask name type flags entries numEntries payloadStaticSize packAlign schemaId extension",
        ),
        ("nvtxPayloadEnumAttr_t", "fieldMask name entries numEntries sizeOfEnum schemaId extension"),
    ):
        lines.append(f'_Static_assert(sizeof({struct}) == sizeof(our_{struct}), "{struct}");')
        lines += [f"SAME({struct}, {name})" for name in members.split()]
        text = text.replace(f"}} {struct};", f"}} our_{struct};")
    (tmp_path / "ours.h").write_text(re.sub(r"enum \{[^}]*\};", "", text))
    (tmp_path / "abi.c").write_text(
        '#include <stddef.h>\n#include <nvtx3/nvToolsExtPayload.h>\n#include "ours.h"\n'
        "#define SAME(type, member) _Static_assert(offsetof(type, member) == offsetof(our_##type, member) && "
        "sizeof(((type *)0)->member) == sizeof(((our_##type *)0)->member), #type #member);\n" + "\n".join(lines)
    )
    cuda.c_compiler("-std=gnu11", f"-I{nvtx_wheels}/include", "-c", tmp_path / "abi.c", "-o", tmp_path / "abi.o")


@pytest.mark.full
def test_program_with_the_headers(tmp_path, nvtx_wheels):
    source = r"""
    #include <nvtx3/nvToolsExt.h>
    int main(void) {
        nvtxRangePushA("before");
        begin();
        nvtxDomainHandle_t domain = nvtxDomainCreateA("dom");
        nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
        event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        event.message.registered = nvtxDomainRegisterStringA(domain, "step");
        nvtxDomainRangePushEx(domain, &event);
        launch(kernel("foo"));
        nvtxDomainRangePop(domain);
        nvtxRangePop();
    }
    """
    trace = hooked.traced(tmp_path, source, f"-I{nvtx_wheels}/include", "-Wno-unused-parameter")
    expected = [("push", None, "before"), ("push", "dom", "step"), ("end", "dom", "step"), ("end", None, "before")]
    assert told(trace) == expected
    (launch,) = [call for call in trace.calls if call["name"] == "cuLaunchKernel"]
    step = trace.of("range")[1]
    assert step["start"] < launch["start"] < launch["start"] + launch["duration"] < trace.of("range_end")[0]["end"]


@pytest.mark.full
def test_python_package(tmp_path, nvtx_wheels):
    code = """
import nvtx
with nvtx.annotate("outer", color="green"):
    with nvtx.annotate("inner", domain="mine"):
        pass
nvtx.end_range(nvtx.start_range("range"))
nvtx.mark("here")
"""
    env = {"PYTHONPATH": str(nvtx_wheels), "PATH": "/usr/bin:/bin"}
    done = hooked.run(tmp_path / "t.mp", sys.executable, "-c", code, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    names = [(what, name) for what, _, name in told(Trace(tmp_path / "t.mp"))]
    assert names == [
        ("push", "outer"),
        ("push", "inner"),
        ("end", "inner"),
        ("end", "outer"),
        ("start", "range"),
        ("end", "range"),
        ("mark", "here"),
    ]
