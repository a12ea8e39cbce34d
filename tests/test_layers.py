"""Dependencies point one way: a file only imports from files below it in the list in gpt(7), SOURCE TREE."""

import ast
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = [
    tuple(names.split(" , "))  # one entry makes one layer
    for names in re.findall(r"^\.It Pa (gpt/\S+(?: , gpt/\S+)*)", (ROOT / "man/man7/gpt.7").read_text(), re.M)
]
FREE = {"gpt/__init__.py"}
IMPORTS = re.compile(r"^[ \t]*(?:import[ ].+|from[ ]\S+[ ]import[ ](?:\([^)]*\)|.+))$", re.M)


@cache
def sources():
    return [path for path in sorted((ROOT / "gpt").rglob("*.py")) if "_runtime" not in path.parts]


def layer_of(path):
    """Return the layer whose name is the longest prefix of the path. gpt/analyze/lib/ isn't part of gpt/analyze/."""
    fits = [(len(name), number) for number, names in enumerate(LAYERS) for name in names if path.startswith(name)]
    return max(fits)[1] if fits else None


@cache
def imports_of(path):
    """Return the import statements of a file, and those in its strings. Parsing whole files takes ten times as long."""
    found = []
    for text in IMPORTS.findall(path.read_text()):
        with suppress(SyntaxError):  # a line of text
            found += ast.parse(text.strip()).body
    return found


@cache
def imported(path):
    names = []
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names if alias.name.split(".")[0] == "gpt")
        elif node.module and node.module.split(".")[0] == "gpt":
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def file_of(module):
    """Return the file of a module, or of the module that defines this name; for a package, its folder."""
    path = module.replace(".", "/")
    files = (f"{path}.py", f"{path.rpartition('/')[0]}.py")
    return next((file for file in files if (ROOT / file).exists()), f"{path}/")


def test_no_file_imports_from_above():
    checked = 0
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name in FREE:
            continue
        layer = layer_of(name)
        assert layer is not None, f"{name} is in no layer of gpt(7)"
        for module in imported(path):
            other = layer_of(file_of(module))
            assert other is None or other >= layer, f"{name} imports {module}"
            checked += 1
    assert checked > 100


def test_no_two_files_import_each_other():
    """Indirect imports count. Files without remaining imports are removed repeatedly; any files that are left form
    cycles.
    """
    imports = {}
    for path in sources():
        names = (module.replace(".", "/") + ".py" for module in imported(path))
        imports[str(path.relative_to(ROOT))] = {name for name in names if (ROOT / name).exists()}
    while done := [path for path, needed in imports.items() if not needed & imports.keys()]:
        for path in done:
            del imports[path]
    assert not imports


def test_a_plan_knows_no_instruction_set():
    """gpt/probe itself parses the PTX in probes. The back end decides what to weave, and into what: lowering a
    snippet's body needs the PTX tree and types, and the layout of logs, but no module.
    """
    allowed = {
        "plan": ("gpt.base.", "gpt.formats.closed", "gpt.formats.params", "gpt.stream.", "gpt.probe."),
        "lower": ("gpt.ptx.tree", "gpt.ptx.types", "gpt.stream.rooms", "gpt.probe."),
    }
    for folder, begin in allowed.items():
        for path in (ROOT / "gpt" / "probe" / folder).glob("*.py"):
            for node in imports_of(path):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("gpt"):
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                    assert all(name.startswith(begin) for name in names), f"{path}: {names}"


def test_only_entry_points_import_other_peoples_formats():
    """Formats register their readers; the core doesn't import them."""
    for path in sources():
        name = str(path.relative_to(ROOT))
        if not name.startswith(("gpt/stages/", "gpt/compat/")) and name != "gpt/trace/__init__.py":
            assert not any(module.startswith("gpt.compat") for module in imported(path)), name


def test_injected_modules_import_only_the_standard_library():
    """gpt.tensors and gpt.layers are alone in the folders that gpt-hook puts on PYTHONPATH."""
    for path in [path for name in ("tensors", "layers") for path in (ROOT / "gpt" / name).glob("*.py")]:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        names = {name for node in ast.walk(tree) for name in _names_of(node)}
        known = {"sitecustomize", *sys.stdlib_module_names}
        assert all(name.startswith("gpt.tensors.") or name in known for name in names), path


def _names_of(node):
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    return [module if module.startswith("gpt") else module.split(".")[0]] if module else []


def test_stages_only_read_options():
    for path in (ROOT / "gpt" / "stages").glob("*.py"):
        assert path.read_text().count("\n") <= 150, path


def test_no_stage_imports_another():
    for path in (ROOT / "gpt" / "stages").glob("*.py"):
        assert not any(module.startswith("gpt.stages") for module in imported(path))


def test_no_test_imports_from_another():
    """tests/gpu is the exception: it runs other folders' tests on a GPU."""
    for path in {*(ROOT / "tests").rglob("*.py")} - {*(ROOT / "tests" / "gpu").glob("*.py")}:
        text = path.read_text()
        if not re.search(r"import.*[ .]test_|from.*[ .]test_.* import|import \($", text, re.M):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
            module = f"{getattr(node, 'module', None) or ''}."
            assert not any(".test_" in f".{module}{name}" for name in names), f"{path}: {module}{names}"
