"""Imports go one way, and ctypes functions stay in the raw layer, as the source shows."""

import ast
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from helpers.harness import run_python

import cudnnlite
from cudnnlite import workbench

ROOT = Path(cudnnlite.__file__).parent

# From the bottom to the top.  A name stands for the module or for the whole folder.  Within one
# layer modules may import each other as long as there is no cycle.
LAYERS = (
    # The words, and of what libcudnn exports what loads no library.
    (
        "version",
        "errors",
        "cached_property",
        "warn",
        "arguments",
        "other_libraries",
        "unknown",
        "sizes",
        "texts",
        "enums",
        "dtypes",
        "files",
        "_raw.cenum",
        "_raw.enums",
        "_raw.types",
        "_raw.record",
        "_raw.replacements",
        "_raw.functions",
        "_raw.signatures",
        "_raw.attributes",
        "_raw.dlpack",
        "_raw.dlpack_exchange",
        "_raw.opaque",
        "_raw.elf",
        "_raw.fork_lock",
        "_raw.noncopyable",
        "_raw.null_pointers",
        "_raw.leaks",
        "_raw.dependencies",
    ),
    ("_raw.check", "_raw.library", "_raw.calls", "_raw.api"),
    ("specs",),
    ("descriptors",),
    # What is asked, as data, and the equations of it: no device.
    ("problems",),
    # Graphs have descriptors and no device; the emulated device reads them too.
    ("graph",),
    (
        "devices.__init__",
        "devices.device",
        "devices.foreign",
        "devices.observer",
        "devices.storage",
    ),
    (
        "devices.cuda",
        "devices.cuda_facts",
        "devices.cuda_graph",
        "devices.cuda_kernels",
        "devices.cuda_loss",
        "devices.cuda_clocks",
        "emulated",
    ),
    ("devices.device_choice",),
    ("devices",),
    ("plans",),
    ("operations",),
    ("raw", "types", "__init__"),
    # The workbench.
    ("workbench.__init__", "workbench.tuning"),
    ("workbench.absent",),
    ("workbench.tracing",),
    ("workbench.report",),
    ("workbench.bench",),
    ("workbench.doctor",),
    ("cli", "__main__"),
)
# What the workbench and the command line import of the core, beyond public names and the words.
PLUMBING = {
    # _raw
    "_raw.api",
    "_raw.calls",
    "_raw.cenum",
    "_raw.dependencies",
    "_raw.elf",
    "_raw.enums",
    "_raw.functions",
    "_raw.library",
    "_raw.noncopyable",
    "_raw.opaque",
    "_raw.record",
    "_raw.types",
    # descriptors
    "descriptors.native",
    # devices
    "devices.arrays",
    "devices.cuda",
    "devices.cuda_facts",
    "devices.device",
    "devices.device_choice",
    "devices.foreign",
    "devices.observer",
    "devices.peaks",
    "devices.storage",
    # graph
    "graph.attributes",
    "graph.compiled_plans",
    "graph.data",
    "graph.device_properties",
    "graph.engines",
    "graph.execution_plan",
    "graph.exclusions",
    "graph.faults",
    "graph.lowering",
    "graph.operation_graph",
    "graph.problem",
    "graph.records",
    "graph.selection",
    # operations
    "operations.attention.attention_graphs",
    "operations.convolution.algorithms",
    "operations.convolution.convolution_plan",
    "operations.convolution.engines",
    "operations.convolution.graphs",
    "operations.convolution.layout_conversion",
    "operations.graph.activations",
    "operations.graph.graph",
    "operations.layers.matmul",
    "operations.layers.pooling_plan",
    "operations.rnn.choice",
    "operations.rnn.native_rnn",
    # plans
    "plans.capture",
    "plans.choice",
    "plans.function",
    "plans.graph_call",
    "plans.graph_plan",
    "plans.operands",
    "plans.ranges",
    "plans.request",
    # problems
    "problems.call_watch",
    "problems.catalogue",
    "problems.convolution",
    "problems.convolution_backward",
    "problems.frames",
    "problems.fused_convolution",
    "problems.operation",
    "problems.results",
    "problems.rnn",
    "problems.rnn_equations",
    "problems.roofline",
    "problems.table",
    "problems.work",
    # specs
    "specs.filter",
    "specs.frozen",
    "specs.layout",
    "specs.math_types",
    "specs.rnn_rules",
    "specs.rnn_weights",
    "specs.steps",
}
# The data types that ctypes may supply above _raw; anything else calls, loads or casts.
DATA = {
    "byref",
    "addressof",
    "pointer",
    "POINTER",
    "Structure",
    "sizeof",
    "Array",
    "create_string_buffer",
}
CALLBACKS = {"emulated.api": {"_Pointer"}, "workbench.tracing.recorder": {"_Pointer"}}


FOLDERS = {
    "_raw",
    "specs",
    "descriptors",
    "devices",
    "emulated",
    "graph",
    "problems",
    "plans",
    "operations",
    "workbench",
    "cli",
}


def module_name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {
    module_name(path): path for path in sorted(ROOT.rglob("*.py")) if module_name(path) != "_raw"
}


def layer(name):
    parts = name.split(".")
    for package in [
        ".".join(parts[:count]) for count in range(len(parts), 0, -1)
    ]:  # the closest name counts
        for number, names in enumerate(LAYERS):
            if package in names or (package == name and f"{package}.__init__" in names):
                return number
    return pytest.fail(f"cudnnlite.{name} has no layer: give it one in {__name__}.LAYERS")


class Imports(ast.NodeVisitor):
    """All imports of a module: (name, whether inside a function, line)."""

    def __init__(self):
        self.imports, self._depth = [], 0

    def visit_FunctionDef(self, node):
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node):
        """Take the name that `import_module` receives as a string for an import."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
            self.imports.append((node.args[0].value, self._depth > 0, node.lineno))
        self.generic_visit(node)

    def visit_Import(self, node):
        self.imports += [(alias.name, self._depth > 0, node.lineno) for alias in node.names]

    def visit_ImportFrom(self, node):
        assert node.level == 0, f"line {node.lineno}: a relative import"
        for alias in node.names:
            self.imports.append((f"{node.module}.{alias.name}", self._depth > 0, node.lineno))


@cache
def tree_of(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name):
    visitor = Imports()
    visitor.visit(tree_of(name))
    return visitor.imports


# Modules whose names are imported when they are first used.
LATER = ("__init__", "workbench")


def own_imports(name):
    """The modules of cudnnlite that a module imports: (module, inside a function, line).

    Without the public names of the workbench, which are imported when they are first used.
    """
    for full, inside, line in imports(name):
        if name in LATER and full.startswith("cudnnlite.workbench"):
            continue
        if full == "cudnnlite":
            yield "__init__", inside, line
        elif full.startswith("cudnnlite."):
            parts = full.split(".")[1:]
            while parts and ".".join(parts) not in MODULES:
                parts.pop()  # `from cudnnlite.enums import Status`
            yield ".".join(parts) or "__init__", inside, line


def test_the_modules_are_found():
    assert len(MODULES) > 35
    assert {
        "devices.handle",
        "specs",
        "specs.tensor",
        "_raw.api",
        "emulated.kernels",
        "graph.engines",
        "problems.catalogue",
        "plans.request",
        "operations.convolution",
        "__init__",
    } <= set(MODULES)
    assert ("emulated.device", True) in {
        (name, inside) for name, inside, _ in own_imports("devices.device_choice")
    }
    assert ("_raw.library", False) in {
        (name, inside) for name, inside, _ in own_imports("_raw.api")
    }


def test_nobody_imports_something_above_itself():
    layers = {name: layer(name) for name in MODULES}
    upward = [
        f"{name}, line {line}: {other}"
        for name in MODULES
        for other, _, line in own_imports(name)
        if layers[other] > layers[name]
    ]
    assert upward == []


def typed(name):
    """The modules of the names that a module imports for checkers alone."""
    (block,) = (
        node
        for node in tree_of(name).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_the_public_names_of_the_workbench_are_imported_later():
    """Checkers see the imports; at run time a table has the modules."""
    modules = {name: f"cudnnlite.workbench.{room}" for name, room in workbench._MODULES.items()}
    assert typed("workbench") == modules
    assert {*modules} == {*workbench.__all__}
    at_the_top = typed("__init__")
    assert at_the_top.pop("workbench") == "cudnnlite"
    assert at_the_top == {name: modules[name] for name in cudnnlite.__all__ if name in modules}
    for name in LATER:
        at_once = [full for full, _, _ in imports(name) if full.startswith("cudnnlite.workbench")]
        assert len(at_once) == len(typed(name))


def is_of_the_workbench(name):
    return name.partition(".")[0] in ("workbench", "cli", "__main__")


def test_the_core_imports_nothing_of_the_workbench():
    """Inside functions and for typing neither."""
    imported = {
        (name, other)
        for name in MODULES
        if not is_of_the_workbench(name)
        for other, _, _ in own_imports(name)
        if is_of_the_workbench(other)
    }
    assert imported == set()


def test_modules_are_imported_by_constant_names():
    """So that every import is seen here; the tables of `LATER` are compared above."""
    for name in MODULES:
        if name in LATER:
            continue
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.ImportFrom) and node.module == "importlib":
                assert all(alias.asname is None for alias in node.names), name
            called = getattr(node, "func", None)
            if getattr(called, "attr", getattr(called, "id", "")) == "import_module":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{name}, line {node.lineno}"
                assert not argument.value.startswith("."), f"{name}, line {node.lineno}"


def test_the_workbench_imports_public_names_and_what_is_listed():
    words = {name for name in LAYERS[0] if not name.startswith("_raw")}
    imported = {
        other
        for name in MODULES
        if is_of_the_workbench(name)
        for other, _, _ in own_imports(name)
        if not is_of_the_workbench(other)
    }
    public = {"__init__", "descriptors", "specs", "types"}
    assert imported - words - public == PLUMBING


def test_imports_inside_functions_for_typing_and_by_name_are_found():
    source = """
    if TYPE_CHECKING:
        from cudnnlite.problems import catalogue

    def find():
        importlib.import_module("cudnnlite.problems.problem")
    """
    visitor = Imports()
    visitor.visit(ast.parse(dedent(source)))
    assert visitor.imports == [
        ("cudnnlite.problems.catalogue", False, 3),
        ("cudnnlite.problems.problem", True, 6),
    ]


def test_there_is_no_cycle():
    """Neither between rooms nor inside of one.

    Imports inside functions count, and so do those for typing and those by `import_module`.
    """
    edges = {
        name: {other for other, _, _ in own_imports(name) if other != name} for name in MODULES
    }
    finished, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in finished:
            path.append(name)
            for other in sorted(edges[name]):
                visit(other)
            path.pop()
            finished.add(name)

    for name in sorted(edges):
        visit(name)
    assert finished == set(MODULES)


def test_only_the_choice_imports_the_emulated_device():
    importers = {
        (name, inside)
        for name in MODULES
        if name.partition(".")[0] != "emulated"
        for other, inside, _ in own_imports(name)
        if other.partition(".")[0] == "emulated"
    }
    assert importers == {("devices.device_choice", True)}


def test_the_root_is_read_in_one_glance():
    modules = [path for path in ROOT.iterdir() if path.suffix == ".py"]
    assert len(modules) <= 16
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == FOLDERS


def third_party(name):
    return {
        (full.split(".")[0], inside)
        for full, inside, _ in imports(name)
        if not full.startswith("cudnnlite")
    }


def test_only_three_modules_import_cuda_python():
    cuda = {
        name: {(full, inside) for full, inside, _ in imports(name) if full.split(".")[0] == "cuda"}
        for name in MODULES
    }
    for name in ("devices.cuda", "devices.cuda_facts", "devices.cuda_clocks"):
        modules = cuda.pop(name)
        assert modules
        assert all(inside for _, inside in modules)  # importing cudnnlite must not import them
    finds_libraries = {(full.split(".")[1], inside) for full, inside in cuda.pop("_raw.library")}
    assert finds_libraries == {("pathfinder", True)}
    assert {name: modules for name, modules in cuda.items() if modules} == {}


def test_modules_need_nothing_but_numpy_when_imported():
    assert layer("cli") == len(LAYERS) - 1
    needed = set()
    for name in MODULES:
        if layer(name) == layer("cli"):  # what only the command line imports may be more
            continue
        allowed = {"numpy", *sys.stdlib_module_names}
        if name.startswith("emulated."):  # `import cudnnlite` does not import the emulated device
            allowed.add("ml_dtypes")
        needed |= {
            (name, part) for part, inside in third_party(name) if not inside and part not in allowed
        }
    assert needed == set()


@pytest.mark.processes
def test_importing_loads_nothing_that_most_programs_never_need():
    """They took a fifth of the time; commands, absent GPUs, refusals and masked arrays use them."""
    process = run_python(
        """
        import sys

        import numpy

        before = set(sys.modules)
        import cudnnlite

        unused = {"subprocess", "multiprocessing", "socket", "tempfile", "numpy.ma", "hashlib"}
        unused |= {"difflib", "signal"}
        print(sorted(unused & set(sys.modules) - before))
        """
    )
    assert process.stdout.strip() == "[]"


def test_what_is_not_in_the_wheel_is_not_imported():
    """The generator of _raw and the recorders lie in tools/, beside the package."""
    for folder in ("tools", "tests", "docs", "examples"):
        importers = [name for name in MODULES if folder in {part for part, _ in third_party(name)}]
        assert importers == [], folder


# A package that is empty until a name is asked for that its __init__ defines: then that runs.
ONE_BY_ONE = """
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType

root = Path(sys.argv[1])
folders = {
    ".".join(path.relative_to(root.parent).parts): path
    for path in [root, *(path.parent for path in root.rglob("*/__init__.py"))]
}


class EmptyPackage(ModuleType):
    def __init__(self, name, folder):
        super().__init__(name)
        self.__path__ = [str(folder)]
        self.__file__ = str(folder / "__init__.py")

    def __getattr__(self, name):
        folder = Path(self.__path__[0])
        is_module = (folder / f"{name}.py").exists() or (folder / name).is_dir()
        if name.startswith("__") or is_module or "_has_run" in vars(self):
            raise AttributeError(f"{self.__name__} has no {name}")
        self._has_run = True
        exec(compile(Path(self.__file__).read_text(), self.__file__, "exec"), vars(self))
        return getattr(self, name)


class ModulesThatRan:
    # Finds modules that ran before, which do not run, or import anything, a second time.
    def __init__(self):
        self.modules = {}
        self.tested = ""  # The module that is imported by itself runs again.

    def find_spec(self, name, path=None, target=None):
        if name in self.modules and name != self.tested:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return self.modules[spec.name]

    def exec_module(self, module):
        pass


modules_that_ran = ModulesThatRan()
sys.meta_path.insert(0, modules_that_ran)


def empty_the_packages():
    # The modules of _raw come first, each by itself; then they stay, since their tables are large.
    raw = f"{root.name}._raw."
    for name in [name for name in sys.modules if name.partition(".")[0] == root.name]:
        if path.parent.name == "_raw" or not name.startswith(raw):
            module = sys.modules.pop(name)
            if not isinstance(module, EmptyPackage):
                modules_that_ran.modules[name] = module
    for name, folder in folders.items():
        sys.modules[name] = EmptyPackage(name, folder)


count = 0
for path in sorted(root.rglob("*.py")):
    if path.stem not in ("__init__", "__main__"):
        empty_the_packages()
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        count += 1
        modules_that_ran.tested = name
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
print(count)
"""


@pytest.mark.processes
def test_each_module_imports_by_itself():
    """No module relies on an import that a package or another module happened to make before."""
    *failures, count = run_python(ONE_BY_ONE, ROOT).stdout.splitlines()
    assert failures == []
    assert int(count) == len([name for name in MODULES if MODULES[name].stem[:2] != "__"])


def uses_of_ctypes(tree):
    """The attributes of ctypes that a module uses, however it imported them."""
    names, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ctypes":
            used |= {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if alias.name.split(".")[0] == "ctypes"
            }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
        ):
            used.add(node.attr)
    return used


def test_above_raw_ctypes_supplies_data_types_only():
    used, with_cdll = {}, []
    for name in (name for name in MODULES if not name.startswith("_raw")):
        used[name] = {
            attr for attr in uses_of_ctypes(tree_of(name)) if not attr.startswith("c_")
        } - DATA
        with_cdll += [
            name
            for n in ast.walk(tree_of(name))
            if isinstance(n, ast.Attribute) and n.attr == "cdll"
        ]
    assert {name: functions for name, functions in used.items() if functions} == CALLBACKS
    assert with_cdll == []
