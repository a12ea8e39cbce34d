"""Kernels and instructions that weaving leaves alone, and why."""

import pytest

from gpt.probe.ptx.weave import LeftAlone, weave
from gpt.probe.verify import verify
from tests.probe.ptx.woven import HEAD, assembled, check, kernel, lines, probe, simple


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (kernel("ret;"), "no probe applies to it"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", HEAD.replace("8.0", "6.1")), "PTX 6.1 is older than 6.2"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", HEAD.replace("64\n", "32\n")), "its addresses have 32 bits"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret; //@"), "it is woven already: '//@' is in it"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", params=".param .b8 p[4348]"), "no room for 1 more parameters"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", params=".param .align 64 .b8 p[4345]"), "no room for 1 more"),
    ],
)
def test_kernels_left_alone(data, reason):
    with pytest.raises(LeftAlone, match=reason):
        weave(data, "k", [simple("ld.global", "mov.u32 %a, 1;")])


@pytest.mark.parametrize(
    ("body", "snippet", "reason"),
    [
        ("atom.global.add.u32 _, [%rd1], 1;", "mov.u32 %a, OUT;", "has no OUT"),
        ("atom.global.add.u32 %r1, [%rd1], 1;", "mov.u32 %a, IN4;", "has no IN4"),
        ("atom.global.cas.b64 %rd1, [%rd1], 1, 2;", "mov.u32 %a, OUT;", "64 bits"),
        ("atom.global.add.u32 %x, [%rd1], 1;", "mov.u32 %a, OUT;", "not a register of a plain type"),
    ],
)
def test_instructions_left_alone(body, snippet, reason, tmp_path):
    woven = weave(kernel(f"atom.global.add.u32 %r1, [%rd1], 1, 2, 3, 4;\n{body}\nret;"), "k",
                  [simple("atom.global", snippet, "after")])  # fmt: skip
    assert [reason in fact for fact in woven.misfits] == [True]
    assert [(site.matched, site.woven) for site in woven.sites] == [(2, 1)]


def test_probes_that_share_nothing_do_not_wait_for_each_other():
    sched = '[sched]\nposition = "kernel"\ndatamodel = "warp:8"\nbefore = ".reg .u64 %t;mov.u64 %t, TIME;"\n'
    sched += 'after = "SAVE.u64 {%t};"\n'
    count = '[count]\nposition = "ld.global"\nbefore = ".reg .u64 %n;add.u64 %n, %n, 1;"\n'
    total = '[total]\nposition = "kernel"\ndatamodel = "warp:8"\nafter = "SAVE.u64 {%n};"\n'
    woven = weave(kernel("ret;"), "k", [probe(sched + count + total)])
    assert [placed.map.name for placed in woven.maps] == ["sched"]
    woven = weave(kernel("ld.global.u32 %r1, [%rd1]; ret;"), "k", [probe(sched + count + total)])
    assert [placed.map.name for placed in woven.maps] == ["sched", "total"]
    with pytest.raises(LeftAlone):
        weave(kernel("ret;"), "k", [probe(count + total)])


def test_unverified_probes_skip_sites_they_do_not_fit():
    for saved in ("SAVE [other] {%a};", "SAVE [m] {%a, %a};"):
        file = simple("ld.global", f"mov.u32 %a, 1;\n{saved}")
        with pytest.raises(LeftAlone, match="no probe applies to it"):
            weave(kernel("ld.global.u32 %r1, [%rd1]; ret;"), "k", [file])


def test_unverified_probes_are_woven_unchanged(tmp_path):
    data = kernel("ld.global.u32 %r1, [%rd1]; ret;")
    woven = check(data, simple("ld.global", "mov.u32 %a, %r2; membar.gl; exit;"), tmp_path=tmp_path)
    assert {"membar.gl;", "exit;"} <= {*lines(woven)}
    for snippet in ("cvt.u32.u64 %a, ADDR.x;", "mov.u32 %a, IN1.q;", "mov.u32 %a, IN1.x.y;"):
        with pytest.raises(LeftAlone, match=r"no probe applies to it: .* has no "):
            weave(data, "k", [simple("ld.global", snippet)])


@pytest.mark.parametrize(
    ("head", "snippet", "reason"),
    [
        ("8.8 sm_90", "min.f32 %f, %f, %f, %f;", "needs sm_100, and it is for sm_90"),
        ("8.7 sm_100", "min.f32 %f, %f, %f, %f;", "needs PTX 8.8, and it is PTX 8.7"),
        ("8.8 sm_100", "min.f32 %f, %f, %f, %f;", None),
        ("7.0 sm_80", "mov.u32 %a, %cluster_ctarank;", "'%cluster_ctarank' needs PTX 7.8, and it is PTX 7.0"),
        ("8.0 sm_80", "mov.u32 %a, %clusterid.x;", "'%clusterid' needs sm_90"),
        ("7.8 sm_90", "mov.u32 %a, %clusterid.x;", None),
        ("6.2 sm_70", "cvt.u64.u32 %d, %a; mov.u64 %d, %current_graph_exec;", "needs PTX 8.0"),
        ("6.5 sm_75", "tanh.approx.f32 %f, %f;", "needs PTX 7.0"),
        ("7.0 sm_52", "tanh.approx.f32 %f, %f;", "needs sm_75, and it is for sm_52"),
    ],
)
def test_module_too_old_for_a_probe_is_unchanged(head, snippet, reason, tmp_path):
    version, target = head.split()
    data = kernel("ld.global.u32 %r1, [%rd1];\nret;", HEAD.replace("8.0", version).replace("sm_90", target))
    file = simple("ld.global", f".reg .f32 %f; .reg .u64 %d;\n{snippet}")
    verify(file)
    if reason is None:
        assembled(weave(data, "k", [file]).data, tmp_path, target)
        return
    with pytest.raises(LeftAlone) as caught:
        weave(data, "k", [file])
    assert caught.value.reason.detail.startswith("probe.toml:8: ") and reason in caught.value.reason.detail


def test_a_total_of_doubles_needs_sm_60(tmp_path):
    text = '[map.m]\ntype = "total"\ndata = {a = "f64"}\n[probe.x]\nposition = "kernel"\nbefore = "SAVE [m] {1.0};"\n'
    data = kernel("ret;", HEAD.replace("sm_90", "sm_53"))
    with pytest.raises(LeftAlone, match="a total of type f64 needs sm_60"):
        weave(data, "k", [probe(text)])
    assembled(weave(data.replace(b"sm_53", b"sm_60"), "k", [probe(text)]).data, tmp_path)
