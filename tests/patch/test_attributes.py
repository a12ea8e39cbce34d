"""A file's attributes are kept, or reported as lost; nobody gets more access to a copy."""

import os
import shutil
import stat
import struct
from contextlib import suppress

import pytest

from gpt.patch import attributes
from gpt.patch.attributes import ACL, copy_attributes
from tests.stages.tools import located, run

USED = "_Z3onePf\n"
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)  # vfs_cap_data: effective, CAP_NET_BIND_SERVICE


def acl(owner, user, group, mask, other, who=4242):
    """Return a struct posix_acl_xattr: version 2, then tag, permissions, and id of each entry."""
    entries = [(1, owner, -1), (2, user, who), (4, group, -1), (16, mask, -1), (32, other, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


@pytest.fixture
def library(sample, tmp_path):
    (tmp_path / "lib").mkdir()
    return shutil.copy(sample("balance"), tmp_path / "lib" / "libbalance.so")


def set_or_skip(path, name, value):
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"{name}: {error.strerror}")


def patched(library, *options):
    done = run("gpt-patch", *options, data=located(library, USED))
    assert done.status == 0, done.err
    assert len(done.kind("patched")) == 1
    return done


def test_in_place_keeps_everything(library):
    set_or_skip(library, "user.note", b"mine\0")
    set_or_skip(library, ACL, acl(6, 4, 0, 4, 0))
    with suppress(PermissionError):
        os.setxattr(library, "security.capability", CAPABILITY)
        os.chown(library, 1234, 4321)
        os.setxattr(library, "security.capability", CAPABILITY)
        os.chmod(library, 0o6740)
    before = {name: os.getxattr(library, name) for name in os.listxattr(library)}
    status = library.stat()
    assert patched(library, "--in-place").err == ""
    assert {name: os.getxattr(library, name) for name in os.listxattr(library)} == before
    now = library.stat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (status.st_mode, status.st_uid, status.st_gid)
    assert now.st_ino != status.st_ino


def test_privileges_are_not_passed_on_elsewhere(library, tmp_path):
    os.chmod(library, 0o7755)
    with suppress(OSError):
        os.setxattr(library, "security.capability", CAPABILITY)
        os.setxattr(library, "user.note", b"mine")
    assert patched(library, "-o", tmp_path / "out").err == ""
    out = tmp_path / "out" / library.name
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert not {"security.capability", "user.note"} & set(os.listxattr(out))


def test_an_acl_is_part_of_the_mode(library, tmp_path):
    """The group bits are the ACL's mask; on their own they would let the group read."""
    set_or_skip(library, ACL, acl(6, 4, 0, 4, 0))
    patched(library, "-o", tmp_path / "out")
    out = tmp_path / "out" / library.name
    assert os.getxattr(out, ACL) == acl(6, 4, 0, 4, 0)
    assert out.stat().st_mode == library.stat().st_mode


@pytest.mark.parametrize("options", [["--in-place"], ["-o", "out"]])
def test_a_folder_gives_no_rights(library, tmp_path, options):
    (tmp_path / "out").mkdir()
    for folder in (library.parent, tmp_path / "out"):
        set_or_skip(folder, "system.posix_acl_default", acl(7, 7, 7, 7, 0))
    os.chmod(library, 0o640)
    done = run("gpt-patch", *options, data=located(library, USED), cwd=tmp_path)
    assert done.status == 0, done.err
    new = library if options == ["--in-place"] else tmp_path / "out" / library.name
    assert ACL not in os.listxattr(new)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_lost_attributes_are_named(library, tmp_path):
    """The caller is neither the owner nor root, so neither ownership nor a capability is given away."""
    if os.geteuid():
        pytest.skip("only root makes files of others")
    set_or_skip(library, "security.capability", CAPABILITY)
    os.chown(library, 1234, 4321)
    os.setxattr(library, "security.capability", CAPABILITY)
    (tmp_path / "new").touch(mode=0o600)
    os.chown(tmp_path / "new", 5678, 5678)
    os.chmod(library, 0o4750)
    with open(library, "rb") as source, open(tmp_path / "new", "r+b") as new:
        os.seteuid(5678)
        try:
            lost = copy_attributes(source.fileno(), new.fileno(), every=True)
        finally:
            os.seteuid(0)
    assert lost == ["its owner", "its group", "security.capability", "its set-user-ID bit"]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700  # the other group must not be able to read it


def test_the_warning(library, monkeypatch, tmp_path):
    """Fail like a file system without attributes."""
    set_or_skip(library, "user.note", b"mine")
    set_or_skip(library, ACL, acl(6, 4, 0, 4, 0))

    def refuse(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(attributes.os, "setxattr", refuse)
    (tmp_path / "new").touch(mode=0o600)
    with open(library, "rb") as source, open(tmp_path / "new", "r+b") as new:
        assert sorted(copy_attributes(source.fileno(), new.fileno(), every=True)) == ["its ACL", "user.note"]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
