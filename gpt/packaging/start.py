"""Find the package from the executables that pip makes: `gpt_start:NAME` is `gpt.executables:NAME`.

`pip install --target DIR` installs the package into DIR, where Python doesn't look, and executables into DIR/bin, which
is first on their path. So this file is installed into both as gpt_start.py (build.py), and adds the package's folder.
"""

import os
import sys
from collections.abc import Callable

_folder, _name = os.path.split(os.path.dirname(os.path.abspath(__file__)))
if _name == "bin" and os.path.isfile(os.path.join(_folder, "gpt", "executables.py")):
    sys.path.insert(1, _folder)

from gpt import executables  # noqa: E402


def __getattr__(name: str) -> Callable[[], int]:
    """Return the entry point of a stage."""
    main: Callable[[], int] = getattr(executables, name)
    return main
