"""Compilers as child processes of gpt-asm."""

from gpt.asm.processes import Processes


def test_temporary_files_go_to_the_folder(tmp_path):
    processes = Processes(60.0)
    assert processes.run(["sh", "-c", "mktemp >/dev/null; kill -9 $$"], str(tmp_path)) == (-9, b"")
    assert len(list(tmp_path.iterdir())) == 1
