"""A fake ptxas: a script that prints given text, and then misbehaves."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """\
#!/bin/sh
case "$1" in
--version) echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
   echo "Cuda compilation tools, release {short}, V{release}";;
--list-version) printf '%s\\n' {versions};;
--help) echo "Allowed values: {targets}.";;
*) for out; do :; done
   {does};;
esac
"""


def ptxas(
    folder: Path, does: str, *, release: str = "13.0.1", versions: str = "7.0 8.0 9.0", targets: str = "sm_90"
) -> Path:
    """Write an executable `ptxas` to `folder`. `does` is a shell command in which `$out` is the file to write."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ptxas"
    named = ", ".join(f"'{target}'" for target in targets.split())
    short = release.rpartition(".")[0]
    path.write_text(SCRIPT.format(short=short, release=release, versions=versions, targets=named, does=does))
    path.chmod(0o755)
    return path
