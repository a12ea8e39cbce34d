"""GPT_KEEP: the files that stages keep for each kernel, under safe names."""

import difflib
import os
import stat

import pytest

from gpt.base.keep import MAX_NAME, keep, kept_in
from tests.stages.tools import run

PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry one(.param .u64 to) {
.reg .b64 %d;
ld.param.u64 %d, [to];
st.global.u32 [%d], 1;
ret;
}
.visible .entry other() {
ret;
}
"""


def test_stages_keep_their_code(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT_KEEP", str(tmp_path / "kept"))
    source = tmp_path / "k.ptx"
    source.write_text(PTX)
    extracted = run("gpt-extract", "--ptx", source)
    woven = run("gpt-ptx-probe", "-p", "gmem_bytes", "-k", "one", data=extracted.out)
    for _ in range(2):  # results in the cache aren't used
        done = run("gpt-asm", "--arch", "sm_90", data=woven.out)
        assert done.status == 0
        (folder,) = (tmp_path / "kept").iterdir()
        report = (folder / "ptxas.txt").read_text()
        assert "Compiling entry function 'one' for 'sm_90'" in report
        (folder / "ptxas.txt").unlink()
    assert folder.name.startswith("one.")
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts["original.ptx"] == PTX
    assert "other" not in texts["pruned.ptx"] and "gpt_map" in texts["probed.ptx"]
    lines = [texts[name].splitlines(keepends=True) for name in ("pruned.ptx", "probed.ptx")]
    assert texts["probes.diff"] == "".join(difflib.unified_diff(*lines, "pruned.ptx", "probed.ptx"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".", "x" * 5000, "\udcff\0\n"])
def test_names_do_no_harm(tmp_path, monkeypatch, name):
    monkeypatch.setenv("GPT_KEEP", str(tmp_path / "kept"))
    keep(name, b"text", {"probed.ptx": b"text"})
    (folder,) = (tmp_path / "kept").iterdir()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (folder / "probed.ptx").read_bytes() == b"text"
    assert len(folder.name) <= MAX_NAME + 17


def test_stage_continues_without_a_cache(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPT_KEEP", str(tmp_path / "file"))
    source = tmp_path / "k.ptx"
    source.write_text(PTX)
    woven = run("gpt-ptx-probe", "-p", "gmem_bytes", data=run("gpt-extract", "--ptx", source).out)
    assert woven.status == 0 and b"gpt_map" in woven.out
    assert "GPT_KEEP: Not a directory" in woven.err


@pytest.mark.parametrize("shape", ["link", "link below", "owner", "others write"])
def test_nothing_is_written_where_another_user_could_have_led_us(tmp_path, monkeypatch, shape):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    (victim := tmp_path / "victim").mkdir()
    top = tmp_path / "kept"
    folder = kept_in(top, "k", b"text")
    match shape:
        case "link":
            top.symlink_to(victim)
        case "link below":
            top.mkdir()
            folder.symlink_to(victim)
        case "owner":
            top.mkdir()
            os.chown(top, 2002, 2002)
        case "others write":
            top.mkdir()
            top.chmod(0o777)
    monkeypatch.setenv("GPT_KEEP", str(top))
    with pytest.raises(PermissionError, match=r"symbolic link|belongs to user 2002|other users may write"):
        keep("k", b"text", {"probed.ptx": b"text"})
    assert not list(victim.iterdir())
