"""The types of names are the names that the functions take."""

from __future__ import annotations

from typing import get_args

import pytest

from cudnnlite import enums
from cudnnlite.dtypes import PLAIN_NAMES, DtypeName
from cudnnlite.operations.graph.activations import ACTIVATIONS, parse_activation
from cudnnlite.specs import names

KINDS = {
    names.ActivationModeName: enums.ActivationMode,
    names.BatchNormModeName: enums.BatchNormMode,
    names.CellName: enums.RNNMode,
    names.ConvolutionModeName: enums.ConvolutionMode,
    names.InputModeName: enums.RNNInputMode,
    names.MathTypeName: enums.MathType,
    names.PoolingModeName: enums.PoolingMode,
    names.SoftmaxAlgorithmName: enums.SoftmaxAlgorithm,
    names.SoftmaxModeName: enums.SoftmaxMode,
}
# What is no member: another word for one, or a choice among them.
OTHERS = {"auto", "silu", "tf32", "true_float32", "float32"}


@pytest.mark.parametrize(("alias", "kind"), KINDS.items(), ids=lambda kind: str(kind)[-30:])
def test_the_names_of_an_enum(alias: object, kind: type[enums.MathType]) -> None:
    assert {*get_args(alias)} - OTHERS == {member.name.lower() for member in kind}


def test_the_names_of_data_types() -> None:
    assert {*get_args(DtypeName)} == {*PLAIN_NAMES}


def test_the_names_of_activations_that_are_graphs() -> None:
    given = {*get_args(names.GraphActivationName)}
    assert given - OTHERS == {*ACTIVATIONS}
    for name in given:
        parse_activation(name, "activation", "None")
