"""The lists of gpt-debloat --apply: --restore deletes them, so they have to be the user's own."""

import os
import subprocess

import pytest


def restore(folder):
    env = os.environ | {"XDG_STATE_HOME": str(folder)}
    return subprocess.run(["gpt-debloat", "--restore"], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shape", ["link", "link above", "owner", "others write"])
def test_nothing_is_deleted_where_another_user_could_have_led_us(tmp_path, shape):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    (home := tmp_path / "home").mkdir()
    (home / "notes.txt").write_text("precious")
    (gpt := tmp_path / "state" / "gpt").parent.mkdir()
    match shape:
        case "link above":
            (home / "applied").mkdir()
            (home / "notes.txt").rename(home / "applied" / "notes.txt")
            gpt.symlink_to(home)
        case _:
            gpt.mkdir()
            (gpt / "applied").symlink_to(home)
            if shape == "owner":
                os.chown(gpt, 2002, 2002)
            elif shape == "others write":
                gpt.chmod(0o777)
    done = restore(tmp_path / "state")
    assert done.returncode == 1 and done.stderr.startswith(f"gpt-debloat: error: {gpt}")
    assert "set XDG_STATE_HOME" in done.stderr
    assert [path.read_text() for path in home.rglob("notes.txt")] == ["precious"]


def test_lists_of_ones_own_are_read(tmp_path):
    (lists := tmp_path / "gpt" / "applied").mkdir(parents=True)
    (lists / "one").write_bytes(b"/nothing\0")
    assert restore(tmp_path).stdout == "libraries restored: 0, from 0B of backups\n"
    assert restore(tmp_path).returncode == 4


@pytest.mark.parametrize("name", ["-delete", "-fls", "-exec", "!", "(", ",", "-r"])
@pytest.mark.parametrize("option", ["-r", "--recursive="])
def test_a_folder_is_no_expression_of_find(tmp_path, name, option):
    """find took '-delete' as what to do with everything in the current folder, and did it."""
    (backup := tmp_path / name / "lib.so.gpt-orig").parent.mkdir()
    backup.write_bytes(bytes(4096))
    (tmp_path / "notes.txt").write_text("precious")
    words = [option + name] if option.endswith("=") else [option, name]
    line = ["gpt-debloat", "--restore", "-n", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"./{name}/lib.so.gpt-orig" in done.stdout and "backups: 1," in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "notes.txt"])
