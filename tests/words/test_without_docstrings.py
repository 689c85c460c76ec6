"""`python -OO` removes docstrings and assertions.

Every module is imported, and calls and commands run.
"""

import pytest
from helpers.harness import run_python

# Python compiles every module for it, ours and those of other packages.
pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]


def test_every_module_an_operation_and_every_command_with_its_help(tmp_path):
    """All in one process: Python compiles every module anew for it."""
    process = run_python(
        """
        import importlib
        import os
        import pkgutil
        import sys
        from pathlib import Path

        import numpy as np
        from typer.main import get_command
        from typer.testing import CliRunner

        import cudnnlite as dnn
        from cudnnlite.cli import main
        from cudnnlite.cli.app import app

        assert False, "assertions are removed"
        # the generator and its parser need libclang, the tuning with Dask needs Dask
        optional = ("clang", "dask", "distributed")
        for module in pkgutil.walk_packages(dnn.__path__, "cudnnlite."):
            if module.name != "cudnnlite.__main__":  # which runs the command line
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    if not error.name.startswith(optional):
                        raise

        with dnn.Handle(device="emulated") as handle:
            x, w = (handle.array(np.ones(shape, np.float32)) for shape in ((1, 2, 6, 5), (3, 2, 3, 3)))
            print(dnn.convolution_forward(handle, x, w).numpy().sum())
            print(handle.api.cudnnGetStream.__doc__)

        def show_help(command, *names):
            app([*names, "--help"], standalone_mode=False)
            for name, inner in getattr(command, "commands", {}).items():
                show_help(inner, *names, name)

        show_help(get_command(app))

        os.chdir(sys.argv[1])
        Path("script.py").write_text("import cudnnlite as dnn; dnn.Handle().close()")
        Path("cache").mkdir()
        Path("other").mkdir()
        arguments = {
            "autotune": "--input 1x2x5x5 --filter 3x2x3x3 --cache cache --html tuning.html",
            "bench": "--input 1x2x5x5 --filter 3x2x3x3 --save run.json --c programs",
            "compare": "run.json run.json",
            "doctor": "",
            "trace": "script.py --c program",
            "demo": "--output edges.png",
            "info": "--json",
            "plan": "--input 1x2x5x5 --filter 3x2x3x3 --gpu t4",
            "cache show": "--cache cache",
            "cache compare": "cache other",
            "cache export": "exported --cache cache",
            "cache merge": "other --cache cache",
            "cache clear": "--cache cache --yes",
        }

        def leaves(command, *names):
            if not hasattr(command, "commands"):
                return [" ".join(names)]
            inner = command.commands.items()
            return [leaf for name, each in inner for leaf in leaves(each, *names, name)]

        commands = set(leaves(get_command(app)))
        if commands != arguments.keys():
            raise SystemExit(f"commands here or there alone: {commands ^ arguments.keys()}")
        # Two caches are empty.
        exit_codes = {"cache compare": 1, "cache export": 1}
        for name, options in arguments.items():
            ended = CliRunner().invoke(app, f"{name} {options}".split())
            if ended.exit_code != exit_codes.get(name, 0):
                raise SystemExit(f"{name}: {ended.exit_code}, {ended.exception!r}, {ended.output}")

        sys.argv = ["cudnnlite", "doctor"]
        main()
        """,
        tmp_path,
        PYTHONOPTIMIZE=2,
        CUDNNLITE_DEVICE="emulated",
        PYTHONWARNINGS="ignore",
    )
    assert process.stdout.startswith("648.0\ncudnnStatus_t cudnnGetStream(")
    assert "None" not in process.stdout.partition("Usage")[0]
    assert "--workspace-limit" in process.stdout
    assert process.stderr == ""
    assert "nothing broken" in process.stdout
