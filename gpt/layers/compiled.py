"""Record the modules that code from torch.compile belongs to, based on the comments in it.

Above each call of a kernel, Inductor's code names the operations that the kernel computes:

    # Topologically Sorted Source Nodes: [silu, linear_1], Original ATen: [aten.silu, aten.addmm]

These operations are nodes of a graph whose metadata names the module of each node. When such code is loaded, each of
these comments is replaced by a call that records which module the thread is in from then on. Neither the file nor the
kernels change. A kernel that computes operations of several modules belongs to the module of the last one. Kernels that
Inductor combined, as in an optimizer's step, come without operations. They belong to the outermost module or function
of their graph, if it has only one.
"""

from __future__ import annotations

import io
import re
import threading
import tokenize
from functools import wraps
from typing import Any, Callable, Dict, NamedTuple

NODES = re.compile(r"# (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*?)\]")
BACKWARD_CODE = re.compile(r"# AOT ID: \['\d+_backward'\]")
FRAME = re.compile(r'File "([^"]*)", line \d+, in (\S+)')
SCOPE = re.compile(r"(?:[LG]\['[^']*'\]|\w+)")  # what a path begins with: the variable that the outermost module was in
STEP = re.compile(r"\.(\w+)|\[['\"]?(\w+)['\"]?\]")
WRAPPING = "torch/optim/optimizer.py"  # every optimizer's step goes through its functions
HIDDEN = frozenset(("_modules", "_orig_mod"))
MODULE, REGION, SITES = "_gpt_layers", "_gpt_region", "_gpt_sites"  # what compiled code imports


def shorten(path: str) -> str:
    """Return a module's path below the outermost one: L['self'].layers[0].up is layers.0.up."""
    begin = SCOPE.match(path)
    words = (one or other for one, other in STEP.findall(path, begin.end() if begin else 0))
    return ".".join(word for word in words if word not in HIDDEN)


class Place(NamedTuple):
    """The place of an operation in the program: the path of its module below the outermost one, and `root`, the class
    of the outermost one. Outside of modules, `root` is the outermost function, with parentheses.
    """

    path: str
    root: str
    in_module: bool


def _find_place(meta: Any) -> Place | None:
    if stack := meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack"):
        found = [*stack.values()]
        (first, title), last = found[0], found[-1][0]
        root = getattr(title, "__name__", str(title)).rpartition(".")[2]
        return Place(shorten(last), root if SCOPE.fullmatch(first) else "", True)
    frames = FRAME.findall(meta.get("stack_trace") or "")
    own = [function for file, function in frames if not file.endswith(WRAPPING)] or [one for _, one in frames]
    return Place("", f"{own[0]}()", False) if own else None


def _read_nodes(graph: Any, traced: bool) -> dict[str, Place]:
    """Return the place of each node, by the name that the node has in Inductor's comments. `traced` says whether
    AOTAutograd made the graph, because it gives nodes other names.
    """
    found = {}
    for node in graph.nodes:
        before = traced and node.meta.get("from_node")
        if node.op != "placeholder" and (place := _find_place(node.meta)):
            found[before[0].name if before else node.name] = place
    return found


class Site(Dict[Any, bytes]):
    """The names of the module to which a place in compiled code belongs. Several modules may run the same code, so
    there's a name for each of them: the key is the name of the module in which the code runs.
    """

    def __init__(self, place: Place | None, backward: bool) -> None:
        super().__init__()
        self.path, self.root, self.backward = place.path if place else "", place.root if place else "", backward


class CompiledCode:
    """Functions that replace Inductor's: they remember the graph that is compiled, and load its code."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._graphs = threading.local()

    def watch(self, original: Callable[..., Any], traced: bool) -> Callable[..., Any]:
        """Return a function that replaces `original`, which compiles a graph."""

        @wraps(original)
        def compile_graph(module: Any, *args: Any, **kwargs: Any) -> Any:
            before = getattr(self._graphs, "modules", None)
            try:
                self._graphs.modules = _read_nodes(module.graph, traced), traced
            except Exception:  # another form of graph: its code stays as it is
                self._graphs.modules = None
            try:
                return original(module, *args, **kwargs)
            finally:
                self._graphs.modules = before

        return compile_graph

    def compile(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        """Compile the source of a module that Inductor wrote. Inductor calls this instead of the built-in function."""
        modules, traced = getattr(self._graphs, "modules", None) or ({}, False)
        # a backward pass from PyTorch's cache comes without its graph
        if modules and isinstance(source, str) and (traced or not BACKWARD_CODE.search(source)):
            try:
                return compile(self.mark(source, modules), *args, **kwargs)
            except (SyntaxError, tokenize.TokenError):
                pass  # code of another form stays as it is
        return compile(source, *args, **kwargs)

    def mark(self, source: str, modules: dict[str, Place]) -> str:
        """Replace comments with calls, and keep the number of lines. Code without such comments isn't changed."""
        lines = source.splitlines(keepends=True)
        free = next((at for at, line in enumerate(lines) if line.strip()[:1] in ("", "#")), None)
        if free is None or not NODES.search(source):
            return source
        backward = bool(BACKWARD_CODE.search(source))
        roots = {place.root for place in modules.values()}
        whole = Place("", roots.pop(), False) if len(roots) == 1 else None
        marked = False  # True if the function has a call
        brackets = 0  # open ones
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            at, column = token.start[0] - 1, token.start[1]
            if token.type == tokenize.OP:
                brackets += (token.string in "([{") - (token.string in ")]}")
            if brackets or not column or lines[at][:column].strip():
                continue
            if token.type == tokenize.COMMENT and (found := NODES.match(token.string)):
                known = [modules[name] for name in found[1].split(", ") if name in modules]
                known = [place for place in known if place.in_module] or known
                place = known[-1] if known else None if found[1] else whole
                self.sites.append(Site(place, backward))
                lines[at] = f"{lines[at][:column]}{REGION}({SITES}[{len(self.sites) - 1}])\n"
                marked = True
            elif token.type == tokenize.NAME and token.string == "def":
                marked = False
            elif marked and token.type == tokenize.NAME and token.string == "return":
                lines[at] = f"{lines[at][:column]}{REGION}(None); {lines[at][column:]}"
        lines[free] = f"from {MODULE} import {REGION}, {SITES}\n"
        return "".join(lines)
