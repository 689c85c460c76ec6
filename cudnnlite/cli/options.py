"""The options of several commands: about problems, and about the limits of a choice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import typer

from cudnnlite.cli import common
from cudnnlite.cli.common import misuse, report_misuse
from cudnnlite.cli.problems import CONVOLUTIONS
from cudnnlite.workbench.tuning.policy import OBJECTIVES, TuningPolicy, parse_field

# what --help shows together
_conv = partial(typer.Option, rich_help_panel="One convolution")
_rnn = partial(typer.Option, rich_help_panel="Recurrent networks")
model = partial(typer.Option, rich_help_panel="Models and lists")
_data = partial(typer.Option, rich_help_panel="Data and arithmetic")
want = partial(typer.Option, rich_help_panel="What is wanted")
_RNN_HELP = (
    "lstm:steps=100,batch=64,input=256,hidden=256 (or gru, tanh, relu), and, if wanted, "
    "layers=2, projection=128, bias=double|single_input|single_recurrent|none, dropout=0.1, "
    "bidirectional, training, batch_major.  Repeatable."
)
_MATH_HELP = (
    "default (on float32 data TF32), fma (true float32), tensor_op or "
    "tensor_op_allow_conversion; what --input, --rnn and "
    "--onnx request."
)
_Text: TypeAlias = str | None
_Texts: TypeAlias = list[str] | None
_Paths: TypeAlias = list[Path] | None

Input = Annotated[
    _Texts, _conv("--input", metavar="NxCxHxW", help="The images' shape: 1 to 3 spatial axes.")
]
Filter = Annotated[
    _Texts, _conv("--filter", metavar="KxCxRxS", help="The filter's.  C is that of a group.")
]
Padding = Annotated[
    _Text, _conv(metavar="P|PxP|same", help="Zeros on both sides: for every axis, or for each.")
]
Stride = Annotated[
    _Text,
    _conv(
        metavar="S|SxS",
        help="Pixels from one place of the filter to the next: for every axis, or for each.",
        show_default="1",
    ),
]
Dilation = Annotated[
    _Text,
    _conv(
        metavar="D|DxD",
        help="Pixels from one tap of the filter to the next: for every axis, or for each.",
        show_default="1",
    ),
]
Groups = Annotated[
    int | None,
    _conv(help="How many groups of channels are convolved apart.", show_default="1"),
]
Operation = Annotated[
    _Text, _conv(metavar="|".join(CONVOLUTIONS), help="It, or a gradient.", show_default="forward")
]
RNN = Annotated[_Texts, _rnn(metavar="CELL:...", help=_RNN_HELP)]
ONNX = Annotated[
    _Paths, model(parser=common.path, metavar="FILE", help="An ONNX model.  Repeatable.")
]
Batch = Annotated[
    _Text,
    model(
        metavar="N[,N...]",
        help="The size of the model's batch axis, where that is open; several are compared.",
    ),
]
Shape = Annotated[
    _Texts,
    model(metavar="NAME=1x3x224x224", help="The shape of one of the model's inputs.  Repeatable."),
]
Problems = Annotated[
    _Paths,
    model(
        parser=common.path,
        metavar="FILE.json",
        help="A list that was recorded or saved: ProblemList.save.  Repeatable.",
    ),
]
Dtype = Annotated[
    _Text,
    _data(
        help="float16, bfloat16, float32, float64, ...; of problems that are no file's, and of --onnx.",
        show_default="float32, or the model's",
    ),
]
Layout = Annotated[
    _Text,
    _data(
        help="NCHW or NHWC (for every rank): the layout of images.",
        show_default="NCHW",
    ),
]
Math = Annotated[_Text, _data(help=_MATH_HELP)]
Objective = Annotated[
    str,
    want(
        metavar="|".join(OBJECTIVES),
        help="The least wall time of calls, or time on the device.",
    ),
]
WorkspaceLimit = Annotated[
    _Text, want(metavar="SIZE", help="The most workspace: '64 MiB', 10%, bytes.")
]
Deterministic = Annotated[
    bool, want("--deterministic", help="Only what gives the same bits each time.")
]
MaxError = Annotated[
    float | None, want(help="The largest relative L2 error against float64 sums, such as 1e-3.")
]
NoTF32 = Annotated[bool, want("--no-tf32", help="Multiply float32 data in true float32 only.")]
AlsoLayout = Annotated[
    _Texts,
    want(
        metavar="NHWC|NCHW|none",
        help="Try this layout too, the conversion there and back counted.  Repeatable.  'none' "
        "tries no other layout.",
        show_default="those that may win",
    ),
]
Interface = Annotated[
    _Text,
    want("--interface", help="Only 'descriptor' calls, or only engines of the 'graph' API."),
]
Exclude = Annotated[
    _Texts,
    want(
        metavar="NAME",
        help="An algorithm or engine that is not chosen: FFT_TILING, 'engine 7'.  Repeatable.",
    ),
]
FlushL2 = Annotated[
    bool, want("--flush-l2", help="Time with operands that are not in the L2 cache.")
]
Engines = Annotated[
    bool,
    want(
        "--engines",
        help="Try engines that no heuristic names, and cuDNN compiles at run time, too.",
    ),
]

# what is written
STDOUT = Path("-")
output = partial(typer.Option, rich_help_panel="Output")
output_file = partial(output, parser=common.path)
CSV = Annotated[
    Path | None,
    output_file(
        metavar="FILE.csv|-",
        help="Write the candidates, a line each; - to stdout alone. A link is replaced.",
    ),
]

NO_LAYOUT = "none"  # the word that stands for an empty tuple of layouts
# The flags of those fields of the policy whose flag has another name.
_OTHER_FLAGS = {"layouts": "--also-layout"}


def flags_of(arguments: Mapping[str, Any], repeatable: Sequence[str]) -> SimpleNamespace:
    """Return the arguments of a command by the names of its options.

    Arguments of repeatable options are lists, empty if the option is not given.
    """
    flags = {name.rstrip("_"): value for name, value in arguments.items()}
    return SimpleNamespace(**flags | {name: flags[name] or [] for name in repeatable})


def check_outputs(flags: SimpleNamespace) -> None:
    """End the command if what --csv and --json ask for cannot be written."""
    if flags.csv == STDOUT and flags.json:
        raise misuse("--csv - and --json exclude each other")
    csv = None if flags.csv == STDOUT else flags.csv
    common.check_output("--csv", csv, (".csv",))


def policy_of(flags: SimpleNamespace) -> TuningPolicy:
    """Return the policy that the flags describe; most flags have the name of a field."""
    names = [item.name for item in fields(TuningPolicy) if hasattr(flags, item.name)]
    names.remove("math_type")  # which is the problem's
    values: dict[str, Any] = {name: getattr(flags, name) for name in names}
    values["allow_tf32"] = not flags.no_tf32
    values["layouts"] = _parse_other_layouts(flags.also_layout)
    if "exclude" in values:
        values["exclude"] = flags.exclude or ()
    if flags.engines:
        values["search"] = "engines"
    with report_misuse():
        parsed = {
            name: parse_field(name, value, _OTHER_FLAGS.get(name, f"--{name.replace('_', '-')}"))
            for name, value in values.items()
        }
    return TuningPolicy(**parsed)


def _parse_other_layouts(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the policy's layouts: None without the flag, and an empty tuple for "none"."""
    if not names:
        return None
    return () if list(names) == [NO_LAYOUT] else tuple(names)


def words_of_policy(policy: TuningPolicy) -> list[str]:
    """Return the options that describe a policy, those that are not at their default."""
    words = []
    if policy.objective != TuningPolicy.objective:
        words.append(f"--objective {policy.objective}")
    if policy.workspace_limit is not None:
        words.append(f"--workspace-limit {policy.workspace_limit}")
    if policy.deterministic:
        words.append("--deterministic")
    if policy.max_error is not None:
        words.append(f"--max-error {policy.max_error!r}")
    if not policy.allow_tf32:
        words.append("--no-tf32")
    if policy.layouts is not None:
        words += [f"--also-layout {layout}" for layout in policy.layouts or (NO_LAYOUT,)]
    if policy.interface is not None:
        words.append(f"--interface {policy.interface}")
    words += [f"--exclude {shlex.quote(name)}" for name in policy.exclude]
    if policy.flush_l2:
        words.append("--flush-l2")
    if policy.search == "engines":
        words.append("--engines")
    return words
