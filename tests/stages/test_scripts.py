"""The scripts built on the stages replace links instead of following them."""

import os
import subprocess

import pytest


def negativa(folder, output):
    line = ["gpt-negativa", "trace", "--device", "sim", "-o", output, "true"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["victim", "nothing"])
def test_a_report_replaces_a_link(tmp_path, target):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "trace.json").symlink_to(target)
    done = negativa(tmp_path, "trace.json")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trace.json").is_symlink() and "loaded_sos" in (tmp_path / "trace.json").read_text()
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["trace.json", "victim"]


def test_a_report_replaces_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = negativa(tmp_path, "pipe")
    assert done.returncode == 1 and "pipe: not a regular file" in done.stderr
