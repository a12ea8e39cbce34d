"""Find the package for the executables that pip makes: `gpt_start:NAME` is `gpt.executables:NAME`.

`pip install --target DIR` puts the package into DIR, where Python does not look, and executables into DIR/bin, where it
looks first. So this file is installed into both as gpt_start.py (build.py), and says where the package is.
"""

import os
import sys
from collections.abc import Callable

_folder, _name = os.path.split(os.path.dirname(os.path.abspath(__file__)))
if _name == "bin" and os.path.isfile(os.path.join(_folder, "gpt", "executables.py")):
    sys.path.insert(1, _folder)

from gpt import executables  # noqa: E402


def __getattr__(name: str) -> Callable[[], int]:
    """The entry point of a stage."""
    main: Callable[[], int] = getattr(executables, name)
    return main
