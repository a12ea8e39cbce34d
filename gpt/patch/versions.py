"""Give wheels another version: `foo-1.2-...whl` becomes `foo-1.2+sm90-...whl`.

A wheel without the code for some GPUs isn't the file that its authors published, so it needs another name. Indexes of
GPU wheels use the label of a local version for this (packaging specifications, "Version specifiers"). `foo==1.2` still
accepts such a wheel, and two of them can't be installed at once. PyPI refuses local versions, but other indexes accept
them. pip compares the version in three places: the file name, the names of the folders `foo-1.2.dist-info` and
`foo-1.2.data`, and the line `Version:` in METADATA.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpt.base.arch import find_arch
from gpt.base.errors import MalformedError, UsageError

_LABEL = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*", re.ASCII | re.IGNORECASE)
_FILE = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?P<rest>(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl)", re.ASCII)
_FOLDER = re.compile(r"(?P<before>\./)?(?P<folder>[^/-]+-[^/]+)(?P<rest>\.(?:dist-info|data)/.*)", re.DOTALL)
_VERSION = re.compile(rb"(?mi)^(Version:[ \t]*)([^\s]+)[ \t]*(?=\r?$)")
_NUMBER = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9]+(?:[_.][a-z0-9]+)*)?", re.ASCII
)
_LOCAL_ARCHS = re.compile(r"(?:(?:^|[-_.])sm\d+[af]?)+$", re.ASCII | re.IGNORECASE)
METADATA = ".dist-info/METADATA"


def parse_label(text: str) -> str:
    """Return a label in the form for file names, `cu128.sm90`. Raises UsageError."""
    if text and not _LABEL.fullmatch(text):
        raise UsageError(f"--label: '{text[:100]}' is not the label of a local version, such as sm90")
    return re.sub("[-_]", ".", text.lower())


def label_of(arch: str) -> str:
    """Return the label for the value of an --arch, such as `sm80.sm90a` for `sm_80,sm_90a`. Raises MalformedError."""
    names = arch.split(",")
    if not all(map(find_arch, names)):
        raise MalformedError(f"span of architecture '{arch}'")
    return ".".join(name.replace("_", "") for name in names)


def with_label(version: str, label: str) -> str:
    """Add a label to a version, unless the version already has it.

    A label of architectures replaces architectures at the end of the version: if a wheel for sm_80 and sm_90 is reduced
    to sm_90, its version names only sm_90.
    """
    public, _, local = version.partition("+")
    if _LOCAL_ARCHS.fullmatch(label):
        local = _LOCAL_ARCHS.sub("", local)
    elif re.sub("[-_]", ".", f".{local.lower()}").endswith(f".{label}"):
        return version
    return f"{public}+{local}.{label}" if local else f"{public}+{label}"


class Renaming(NamedTuple):
    """Renames a wheel, its members, and the version in its METADATA. Without a label, it does nothing."""

    label: str = ""

    def file(self, name: str) -> str:
        """Return the new name of the wheel. Raises MalformedError if it can't have one.

        Downloads may have `%2B` instead of `+`. Old tools wrote `_` in its place, which pip refuses too.
        """
        if not self.label:
            return name
        found = _FILE.fullmatch(re.sub("%2B", "+", name, flags=re.IGNORECASE))
        if not found:
            raise MalformedError("not the name of a wheel, NAME-VERSION-TAG-TAG-TAG.whl", name)
        if not _NUMBER.fullmatch(found["version"].lower()):
            raise MalformedError(
                f"'{found['version']}' isn't a version: rename the file after the one in METADATA", name
            )
        return f"{found['name']}-{with_label(found['version'], self.label)}{found['rest']}"

    def member(self, name: str) -> str:
        """Return the new name of a member of the wheel. Lines of RECORD have the new name as well."""
        found = _FOLDER.fullmatch(name) if self.label else None
        if not found:
            return name
        return f"{found['before'] or ''}{with_label(found['folder'], self.label)}{found['rest']}"

    def metadata(self, data: bytes, where: str) -> bytes:
        """Return METADATA with the new version. Raises MalformedError if it has no version."""
        if not self.label:
            return data
        head, blank, body = data.partition(b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n")
        found = _VERSION.search(head)
        if not found:
            raise MalformedError("METADATA has no version", where)
        version = with_label(found[2].decode(errors="replace"), self.label).encode()
        return head[: found.start(2)] + version + head[found.end() :] + blank + body


SAME_NAMES = Renaming()
