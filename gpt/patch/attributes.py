"""Copy the attributes of a file: owner, mode, access control list, capabilities, other extended attributes.

At no moment may anybody have more access to the copy than to the original. So the copy is created for its owner alone;
first it gets the owner and the group, then it loses what it has inherited from the folder, and last it gets the mode.
If the group can't be kept, the permissions of everybody else apply to it. Set-ID bits are kept only together with their
owner or group.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

SIGNATURES = ("security.ima", "security.evm")  # used by the kernel's integrity subsystem
FS_IOC_GETFLAGS, FS_VERITY_FL = 0x80086601, 0x00100000
ACL = "system.posix_acl_access"
SET_IDS = {"its set-user-ID bit": stat.S_ISUID, "its set-group-ID bit": stat.S_ISGID}


def copy_attributes(source: int, new: int, every: bool) -> list[str]:
    """Copy the mode and the ACL of a file to a new file with mode 0600, and its owner and group if that's permitted.

    With `every`, also copy set-ID bits, capabilities and all other extended attributes. Returns the names of attributes
    that couldn't be copied.
    """
    status = os.fstat(source)
    for owner in (status.st_uid, -1):  # only root may give files away, but everybody may choose one of their groups
        with suppress(OSError):
            os.fchown(new, owner, status.st_gid)
            break
    got = os.fstat(new)
    same_group = got.st_gid == status.st_gid
    lost = [] if got.st_uid == status.st_uid else ["its owner"]
    if not same_group:
        lost.append("its group")
    names = _names(source)
    with suppress(OSError):
        os.removexattr(new, ACL)  # inherited from the folder
    for name in names if every else set(names) & {ACL}:
        try:
            value = os.getxattr(source, name)
            if name == ACL and not same_group:
                raise PermissionError
            if name not in _names(new) or os.getxattr(new, name) != value:
                os.setxattr(new, name, value)
        except OSError:
            lost.append("its ACL" if name == ACL else name)
    mode = stat.S_IMODE(status.st_mode)
    if not every or lost[:1] in (["its owner"], ["its group"]):
        mode &= 0o777
    if not same_group or "its ACL" in lost:  # with an ACL, the group bits are its mask
        mode &= ~0o070 | mode << 3
    os.fchmod(new, mode)
    got = os.fstat(new)
    return lost + [name for name, bit in SET_IDS.items() if status.st_mode & bit and not got.st_mode & bit]


def find_signature(fd: int) -> str | None:
    """Return the name of the signature that protects a file's contents, so that the kernel refuses changed contents, or
    None.
    """
    if names := [name for name in SIGNATURES if name in _names(fd)]:
        return names[0]
    with suppress(OSError):
        flags = int.from_bytes(fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)), "little")
        if flags & FS_VERITY_FL:
            return "fs-verity"
    return None


def _names(fd: int) -> list[str]:
    """Return the names of a file's extended attributes, or nothing if the file system doesn't support them."""
    with suppress(OSError):
        return os.listxattr(fd)
    return []
