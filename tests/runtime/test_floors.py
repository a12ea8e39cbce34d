"""The floors of runtime/hook, from the symbols of its objects: entry uses watch, watch uses write, never upwards."""

import subprocess

from tests.runtime import hooked

# From the ground up: files by what they do.
FLOORS = {
    "write": "bus calm clock counts report rows trace",
    "watch": "contexts driver gputime graphs ioctl libs linker maps missing modules nvtx objects save sha256 streamops"
    " watched",
    "entry": "calls decode exits intercept libc scopes setup stub_x86_64",
}


def symbols(path):
    """What an object defines for others, and what it uses of them."""
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines]
    defined = {word[-1] for word in words if word[-2].isupper() and word[-2] not in "UW"}
    return defined, {word[-1] for word in words if word[-2] == "U"}


def test_nothing_uses_what_stands_above_it(tmp_path):
    floors = {name: level for level, names in enumerate(FLOORS.values()) for name in names.split()}
    source = hooked.ROOT / "runtime"
    files = {path.stem: path for path in (source / "hook").glob("**/*.[cS]")}
    assert sorted(files) == sorted(floors), "each file has a floor"
    line = [
        "cc",
        "-c",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-fvisibility=hidden",
        "-fPIC",
        f"-I{source}",
        f"-I{source}/hook",
    ]
    subprocess.run([*line, *files.values()], cwd=tmp_path, check=True)
    found = {name: symbols(tmp_path / f"{name}.o") for name in files}
    home = {symbol: name for name, (defined, _) in found.items() for symbol in defined}
    upwards = {}
    for name, (_, used) in sorted(found.items()):
        for symbol in used & home.keys():
            if floors[home[symbol]] > floors[name]:
                upwards.setdefault(symbol, []).append(name)
    assert upwards == {}
