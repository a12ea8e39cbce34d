"""Compilers as child processes of gpt-asm."""

import os

from gpt.asm.processes import Processes


def test_temporary_files_go_to_the_folder(tmp_path):
    processes = Processes(60.0)
    assert processes.run(["sh", "-c", "mktemp >/dev/null; kill -9 $$"], str(tmp_path)) == (-9, b"")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_program_without_path_has_a_linker(tmp_path, monkeypatch):
    """cc looks its linker up in PATH, and a program may have cleared its environment."""
    monkeypatch.delenv("PATH")
    status, output = Processes(60.0).run(["/bin/sh", "-c", "/usr/bin/env"], str(tmp_path))
    assert status == 0
    assert f"PATH={os.defpath}" in output.decode().splitlines()
