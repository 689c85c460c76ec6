"""`cudnnlite cache`: what it shows, exports, merges and removes.

Nothing else is touched.
"""

import csv
import io
import json
import re
import shutil
import sys
from dataclasses import asdict, replace
from typing import get_type_hints

import pytest
from helpers.tuning_entries import H100, H200, LATE, convolution, entry, rnn
from helpers.tuning_files import nothing_written
from typer.models import OptionInfo
from typer.testing import CliRunner

from cudnnlite._raw import library
from cudnnlite.cli.app import app
from cudnnlite.enums import MathType
from cudnnlite.errors import LibraryNotFoundError
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, KINDS, REHEARSAL, TuningCache
from cudnnlite.workbench.tuning.entries import TuningKey, canonical, make_key
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import summary

OLD = replace(H200, cudnn=90100)
LIMITED = make_key(
    convolution(3), {"x": 2}, TuningPolicy(workspace_limit="64 MiB", deterministic=True), H200
)
ENTRIES = (
    entry(0),
    entry(1, device=H100),
    entry(problem=rnn(), device=OLD, time_ms=0.25),
    replace(entry(3, tuned_at=LATE), key=LIMITED),
)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The default cache, with the entries, in a folder of its own, where this process works."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "default"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    with TuningCache(path) as cache:
        for new_entry in ENTRIES:
            cache.put(new_entry)
    return path


def run(*arguments, **options):
    return CliRunner().invoke(
        app, ["cache", *map(str, arguments)], prog_name="cudnnlite", **options
    )


def entries(path):
    with TuningCache(path, read_only=True) as cache:
        return cache.entries()


# ---------------------------------------------------------------- rehearsals


def test_a_rehearsal_is_shipped_as_a_cache_is(path, tmp_path):
    """And is never the user's own cache, which stays as it was."""
    device = replace(H200, gpu="emulated (NumPy)", kind="emulated")
    with TuningCache(tmp_path / "one", rehearsal=True) as cache:
        cache.put(entry(1, device=device))
        cache.put(entry(2, device=device))
    with nothing_written(path):
        shown = run("show", "--cache", "one")
        assert shown.stdout.splitlines()[0].endswith(
            ", 2 entries, a rehearsal on the emulated device"
        )
        assert json.loads(run("show", "--cache", "one", "--json").stdout)["rehearsal"] is True
        assert run("export", "shipped", "--cache", "one").exit_code == 0
        assert run("merge", "shipped", "--cache", "other").stdout.startswith("2 entries of shipped")
        compared = run("compare", "one", "other")
        assert compared.stderr.startswith("cudnnlite: rehearsals on the emulated device")
        assert compared.exit_code == 0
        assert compared.stdout.count(": 2 entries: emulated (NumPy)") == 2
        without_folder = run("merge", "shipped")
        assert without_folder.exit_code == 2
        assert (
            "is a rehearsal on the emulated device, which needs a --cache" in without_folder.stderr
        )
        for command in (
            ["merge", "shipped", "--cache", path],
            ["merge", path, "--cache", "one"],
            ["compare", "one", path],
            ["export", path, "--cache", "one"],
            ["export", "one"],
        ):
            refused = run(*command)
            assert refused.exit_code == 1, command
            assert "rehearsal" in refused.stderr
    assert (tmp_path / "other" / REHEARSAL).exists()
    assert json.loads(run("show", "--json").stdout)["rehearsal"] is False


# ---------------------------------------------------------------- show


def test_show(path, monkeypatch):
    monkeypatch.setattr(library, "load_library", lambda: library.Library("", "a test", 92800, None))
    with nothing_written(path):
        result = run("show")
    assert result.exit_code == 0
    where, heading, *lines = result.stdout.splitlines()
    assert where.startswith(f"{path}: ")
    assert where.endswith(" KiB, 4 entries")
    starts = [
        heading.index(name)
        for name in ("tuned", "GPU", "cuDNN", "ms", "choice", "problem", "wanted")
    ]
    cells = {line[starts[5] : starts[6]].strip(): line for line in lines}
    assert list(cells) == [summary(cache_entry.key.problem) for cache_entry in entries(path)]
    old, limited = cells[summary(rnn())], cells[summary(convolution(3))]
    assert "STANDARD (TENSOR_OP)" in old
    assert "9.1.0*" in old
    assert "0.2500" in old
    assert result.stdout.count("*") == 1
    assert limited.startswith("2026-01-31 11:00  NVIDIA H200 ")
    assert limited[starts[6] :] == "deterministic=True, workspace_limit=64 MiB, x aligned to 2"
    assert result.stderr == "cudnnlite: * not used here, where cuDNN is 9.28.0\n"


@pytest.mark.parametrize(
    ("filters", "indices"),
    [
        ([], [0, 1, 2, 3]),
        (["--gpu", "NVIDIA H200"], [0, 2, 3]),
        (["--cudnn", "9.28.0"], [0, 1, 3]),
        (["--cudnn", "90100"], [2]),
        (["--kind", "convolution_forward", "--gpu", "NVIDIA H200"], [0, 3]),
    ],
)
def test_filters_are_those_of_the_cache(path, filters, indices):
    keys = {ENTRIES[index].key.digest for index in indices}
    listing = json.loads(run("show", "--json", *filters).stdout)
    assert {row["digest"] for row in listing["entries"]} == keys
    exported = run("export", "out", *filters)
    assert exported.exit_code == 0
    assert {cache_entry.key.digest for cache_entry in entries("out")} == keys
    cleared = run("clear", "--yes", *filters)
    assert cleared.stdout.startswith(f"{len(indices)} entr")
    assert {cache_entry.key.digest for cache_entry in entries(path)} == {
        cache_entry.key.digest for cache_entry in ENTRIES
    } - keys


@pytest.mark.processes
def test_json(commands, path):
    process = commands.run("cache", "show", "--json")
    listing = json.loads(process.stdout)
    assert (listing["path"], process.stderr) == (str(path), "")
    assert listing["bytes"] == sum(file.stat().st_size for file in path.iterdir())
    for row, cache_entry in zip(listing["entries"], entries(path), strict=True):
        assert row["problem"] == cache_entry.key.problem.to_plain()
        assert row["device"] == asdict(cache_entry.key.device)
        assert row["used_here"] == (
            None
            if listing["cudnn_here"] is None
            else cache_entry.key.device.cudnn == listing["cudnn_here"]
        )
        assert row["chosen"]["algorithm"].endswith(cache_entry.rows[0].algorithm.name)
        assert row["candidates"] == 3


def test_without_a_libcudnn_nothing_is_marked(path, monkeypatch):
    def find():
        raise LibraryNotFoundError("there is none")

    monkeypatch.setattr(library, "load_library", find)
    result = run("show")
    assert ("*" in result.stdout, result.stderr) == (False, "")


def test_the_help_names_every_kind():
    help_text = run("show", "--help").stdout
    assert [kind for kind in KINDS if kind not in help_text] == []


def test_a_filter_that_finds_nothing_says_what_there_is(path):
    result = run("show", "--gpu", "H200")
    assert result.stdout.rstrip().endswith("0 entries")
    assert result.stderr == (
        "cudnnlite: no such entry; there are those of 'NVIDIA H100 80GB HBM3', 'NVIDIA H200' "
        "with cuDNN 9.1.0, 9.28.0\n"
    )


def test_a_cache_that_does_not_exist_yet_is_empty_and_is_not_made(path, tmp_path):
    shutil.rmtree(path)
    result = run("show")
    assert (result.exit_code, result.stdout) == (0, f"{path}: does not exist yet, 0 entries\n")
    assert json.loads(run("show", "--json").stdout)["entries"] == []
    for command in (["show", "--cache", "absent"], ["export", "out"], ["clear", "--yes"]):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- compare


def timed(entry, **changes):
    """The entry, its choice with other times."""
    return replace(entry, rows=(replace(entry.rows[0], **changes), *entry.rows[1:]))


@pytest.fixture
def two(path):
    """Two caches with two problems in common.

    One of these has another choice in the second cache, and one problem has no time.  The second
    cache alone has a further problem, twice.
    """
    device = replace(H200, cudnn=92900)
    with TuningCache("mine") as mine, TuningCache("theirs") as theirs:
        for number, ms, theirs_ms in ((0, 2.0, 1.0), (1, 0.25, 1.0), (2, None, 1.0)):
            mine.put(timed(entry(number), call_us=ms and 1e3 * ms))
            theirs.put(timed(entry(number, device=device), call_us=1e3 * theirs_ms))
        theirs.put(timed(entry(1, device=device), call_us=1e3, math_type=MathType.FMA))
        theirs.put(entry(9, device=device))
        theirs.put(entry(9, device=H100, tuned_at=LATE))


def test_compare(two, tmp_path):
    with nothing_written(tmp_path):
        result = run("compare", "mine", "theirs")
    a, b, heading, *rows, mean, left_out = result.stdout.splitlines()
    assert a == f"A: {tmp_path / 'mine'}: 3 entries: NVIDIA H200 with cuDNN 9.28.0"
    assert b == (
        f"B: {tmp_path / 'theirs'}: 5 entries: NVIDIA H100 80GB HBM3 with cuDNN 9.28.0, "
        "NVIDIA H200 with cuDNN 9.29.0"
    )
    assert heading.split()[:6] == ["A", "ms", "B", "ms", "B/A", "choice"]
    cells = {row[row.index("8x16x16") - 2 :][:1]: row.split() for row in rows}
    assert {number: row[:3] for number, row in cells.items()} == {
        "1": ["2.0000", "1.0000", "0.5000"],
        "2": ["0.2500", "1.0000", "4.0000"],
        "3": ["-", "1.0000", "-"],
    }
    assert {number: ("same" in row, "(FMA)" in row) for number, row in cells.items()} == {
        "1": (True, False),
        "2": (False, True),
        "3": (True, False),
    }
    assert mean == "geometric mean of B/A: 1.4142, of 2 problems"
    assert left_out == "left out: 1 in B only, 1 without a time, 1 older"
    assert (result.exit_code, result.stderr) == (0, "")


def test_compare_for_programs(two):
    plain = json.loads(run("compare", "mine", "theirs", "--json").stdout)
    assert plain["geometric_mean"] == pytest.approx(2**0.5)
    assert plain["left_out"] == {"in A only": 0, "in B only": 1, "without a time": 1, "older": 1}
    heading, *rows = csv.reader(io.StringIO(run("compare", "mine", "theirs", "--csv").stdout))
    assert heading == ["A ms", "B ms", "B/A", "choice of A", "choice of B", "problem", "wanted"]
    assert [[cell or None for cell in row] for row in rows] == [
        [None if cell is None else str(cell) for cell in pair.values()]
        for pair in plain["problems"]
    ]
    times = {(pair["a_ms"], pair["b_ms"], pair["ratio"]) for pair in plain["problems"]}
    assert times == {(2.0, 1.0, 0.5), (0.25, 1.0, 4.0), (None, 1.0, None)}


@pytest.mark.parametrize("sides", [("mine", "theirs"), ("theirs", "mine")])
def test_times_too_far_apart_have_no_ratio(two, sides):
    """A file from elsewhere may hold any number; no float is this ratio."""
    for name, call_us in (("mine", 1e308), ("theirs", 1e-310)):
        with TuningCache(name) as cache:
            cache.put(timed(entry(1, tuned_at=LATE), call_us=call_us))
    assert run("compare", *sides).exit_code == 0
    plain = json.loads(run("compare", *sides, "--json").stdout)
    assert [pair["ratio"] for pair in plain["problems"]].count(None) == 2
    assert plain["geometric_mean"] == pytest.approx(0.5 if sides[0] == "mine" else 2)


@pytest.mark.parametrize(
    ("sides", "counts", "pair_count"),
    [
        (["theirs", "--gpu", H200.gpu, "--gpu", H100.gpu], (4, 1), 1),
        (["theirs", "--cudnn", "9.29.0", "--cudnn", "92800"], (4, 1), 1),
        (["--gpu", H200.gpu, "--cudnn", "9.28.0", "--cudnn", "9.1.0"], (2, 1), 0),
        (["mine", "theirs", "--gpu", H200.gpu], (3, 4), 3),
        (["mine", "theirs", "--kind", "rnn_forward"], (0, 0), 0),
    ],
)
def test_compare_selections(two, sides, counts, pair_count):
    result = run("compare", *sides)
    assert (result.exit_code, "nothing was compared" in result.stderr) == (
        (0, False) if pair_count else (1, True)
    )
    assert (
        tuple(int(line.split(": ")[2].split()[0]) for line in result.stdout.splitlines()[:2])
        == counts
    )
    assert len(json.loads(run("compare", *sides, "--json").stdout)["problems"]) == pair_count


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["mine"],
        ["mine", "mine"],
        ["mine", "theirs", *["--gpu", "x"] * 3],
        ["mine", "theirs", "--csv", "--json"],
    ],
)
def test_compare_of_one_side(two, wrong):
    result = run("compare", *wrong)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("how", [[], ["--csv"], ["--json"]])
def test_a_foreign_cache_commands_no_terminal(path, how):
    """Whatever its GPU, problems and numbers are."""
    evil, device = "\x1b[31m\n\x9b2J", replace(H200, gpu="\x1b]0;x\x07\n")
    with TuningCache("mine") as mine, TuningCache("theirs") as theirs:
        for cache, ms in ((mine, 1e3), (theirs, float("nan"))):
            parts = entry(device=device).key.plain | {
                "problem": {"kind": evil},
                "policy": {evil: evil, "objective": evil},
            }
            foreign = replace(
                timed(entry(device=device), time_ms=ms), key=TuningKey(canonical(parts)), title=evil
            )
            cache.put(foreign)
            cache.put(
                replace(
                    timed(foreign, time_ms=-1.0),
                    key=TuningKey(canonical(parts | {"alignments": {evil: 1}})),
                )
            )
    result = run(
        "compare", "mine", "theirs", *how, color=True
    )  # as at a terminal, where typer removes nothing itself
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 7 or how
    assert not set(result.stdout) & {"\x1b", "\x9b", "\x07"}
    assert not set(run("show", "--cache", "theirs", color=True).stdout) & {"\x1b", "\x9b", "\x07"}
    refused = run("show", "--cache", "\x1b]0;x\x07", color=True)
    assert (refused.exit_code, set(refused.stderr) & {"\x1b", "\x07"}) == (1, set())


# ---------------------------------------------------------------- export, merge


def test_what_is_exported_can_be_merged(path, tmp_path):
    assert run("export", "out").stdout == f"4 entries of {path} written to out\n"
    with TuningCache("mine") as mine:
        mine.put(ENTRIES[0])
    result = run("merge", "out", "--cache", "mine")
    message = f"3 entries of out merged into {tmp_path / 'mine'}, which has 4\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, message, "")
    assert entries("mine") == entries(path)
    assert run("merge", "out", "--cache", "mine").stdout.startswith("0 entries ")


def test_nothing_is_exported_where_there_is_nothing(path, tmp_path):
    result = run("export", "out", "--gpu", "none")
    assert result.exit_code == 1
    assert "nothing to export" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["merge", "absent"],
        ["merge", "notes.txt"],
        ["merge", "default", "--cache", "notes.txt"],
        ["show", "--cache", "notes.txt"],
        ["clear", "--yes", "--cache", "notes.txt"],
        ["export", "notes.txt"],
        ["export", "default"],
        ["export", "notes.txt/out"],
        ["export", "."],
        ["show", "--cache", ":memory:"],
    ],
)
def test_what_does_not_go_leaves_everything_as_it_is(path, tmp_path, command):
    (tmp_path / "notes.txt").write_text("not a cache" * 100)
    with nothing_written(tmp_path):
        result = run(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("cudnnlite: ")


def path_parameters(group, *line):
    """Yield each command line in which one path is "", and the name of that parameter."""
    for subgroup in group.registered_groups:
        yield from path_parameters(subgroup.typer_instance, *line, subgroup.name)
    for command in group.registered_commands:
        start = [*line, command.name or command.callback.__name__]
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            if "Path" in str(hint):
                (info,) = hint.__metadata__
                if isinstance(info, OptionInfo):
                    declarations = (
                        info.default,
                        *(info.param_decls or ()),
                        f"--{name.replace('_', '-')}",
                    )
                    option = next(
                        declaration
                        for declaration in declarations
                        if str(declaration).startswith("--")
                    )
                    yield [*start, option, ""], option
                else:
                    yield [*start, ""], name
                    start.append("default")


@pytest.mark.parametrize(("line", "name"), list(path_parameters(app)))
def test_what_a_variable_leaves_that_is_not_set_is_no_path(path, tmp_path, line, name):
    with nothing_written(tmp_path):
        result = CliRunner().invoke(app, line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(rf"(?i)'\[?{name}]?': '' is not a path", result.stderr)


# ---------------------------------------------------------------- clear


def test_clear_without_a_terminal_needs_yes(path):
    result = run("clear")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--yes" in result.stderr
    assert len(entries(path)) == 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y\n", 0, 1), ("Yes\n", 0, 1), ("n\n", 1, 4), ("", 1, 4)]
)
def test_clear_asks_on_a_terminal(path, monkeypatch, capsys, answer, code, left):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    with pytest.raises(SystemExit) as ended:
        app(["cache", "clear", "--gpu", "NVIDIA H200"])
    out, prompt = capsys.readouterr()
    assert f"Remove 3 entries from {path}?" in prompt
    assert (ended.value.code, len(entries(path))) == (code, left)
    assert out == (f"3 entries removed from {path}\n" if left == 1 else "")


@pytest.mark.parametrize(
    "filters",
    [["--kind", "pooling"], ["--cudnn", "nine"], ["--cudnn", "9.28"], ["--cudnn", "9.128.0"]],
)
@pytest.mark.parametrize("command", [["show"], ["export", "out"], ["clear", "--yes"]])
def test_a_filter_that_is_none(path, tmp_path, command, filters):
    result = run(*command, *filters)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"cudnnlite: {filters[0]} {filters[1]}: allowed: " in result.stderr
    assert len(entries(path)) == 4
    assert not (tmp_path / "out").exists()


def test_a_damaged_entry_is_told_in_a_line_and_passed_over(path):
    (path / f"{ENTRIES[0].key.digest}.json").write_text("x")
    with nothing_written(path):
        result = run("show")
    assert "3 entries" in result.stdout
    assert "cudnnlite: warning: " in result.stderr
    assert "is no entry of a tuning cache" in result.stderr
