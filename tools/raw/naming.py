"""Python names for C enumerations and their members."""

from __future__ import annotations

from itertools import takewhile

# Members whose spelling no general rule meets. Whole words, removed wherever they stand in a
# member's name.
_DROPPED_WORDS = {
    "cudnnMathType_t": "MATH",  # TENSOR_OP_MATH_ALLOW_CONVERSION has it in the middle
    "cudnnRNNMode_t": "RNN",  # RNN_RELU and RNN_TANH, but LSTM and GRU
}
# How many words the prefix in C has, where the members happen to share one word more than that.
_PREFIX_WORDS = {"cudnnNormMode_t": 1}
_RENAMED = {f"CUDNN_{bits}BIT_INDICES": f"INDICES_{bits}BIT" for bits in (8, 16, 32, 64)}


def class_name(c_name: str) -> str:
    """Return the Python class for a typedef: ``cudnnMathType_t`` becomes ``MathType``."""
    return c_name.removeprefix("cudnn").removesuffix("_t")


def members_of(c_name: str, values: dict[str, int]) -> dict[str, int]:
    """Return an enumeration's values by the Python names of its members.

    The words that all members begin with are dropped, and one that all end in; a lone member loses
    its first word. A closing ``..._COUNT`` is named COUNT and has no say in what is shared. A name
    that would start with a digit keeps the last word that was dropped before it (``ALGO_0``).
    """
    c_members = [*values]
    counted = c_members[-1].endswith(("_COUNT", "_COUNTS"))
    words = [
        name.removeprefix("CUDNN_").split("_")
        for name in (c_members[:-1] if counted else c_members)
    ]
    dropped = _DROPPED_WORDS.get(c_name)
    words = [[word for word in name if word != dropped] for name in words]

    alone = len(words) == 1
    head = _PREFIX_WORDS.get(c_name, min(1, len(words[0]) - 1) if alone else _shared(words))
    tails = [name[head:] for name in words]
    tail = 0 if alone else min(1, _shared([name[::-1] for name in tails]))

    names = []
    for c_member, full, short in zip(c_members, words, tails, strict=False):
        name = "_".join(short[: len(short) - tail])
        if name[0].isdigit():
            name = f"{full[head - 1]}_{name}" if head else name
        names.append(_RENAMED.get(c_member, name))
    names += ["COUNT"] * counted
    if len(set(names)) != len(names) or not all(name.isidentifier() for name in names):
        raise ValueError(f"{c_name}: the members' names need a rule: {names}")
    return dict(zip(names, values.values(), strict=True))


def _shared(words: list[list[str]]) -> int:
    """Count the leading words that all share, leaving each at least one."""
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    return min(len(list(alike)), min(map(len, words)) - 1)
