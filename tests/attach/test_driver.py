"""Finding the driver that a process has mapped."""

from __future__ import annotations

import os

import pytest

from gpt.attach import driver
from gpt.base.errors import MissingError


def refuse(_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("user", "fact"),
    [
        (0, "cannot be read: permission denied (other user namespace, or ptrace restrictions)"),
        (1000, "root is needed"),
    ],
)
def test_unreadable_process(monkeypatch, user, fact):
    monkeypatch.setattr(driver, "_read_maps", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(MissingError) as found:
        driver.find_driver(os.getpid())
    assert str(found.value) == f"process {os.getpid()}: {fact}"
