"""Emulated forward convolutions, as the descriptor calls know them."""

from __future__ import annotations

from types import SimpleNamespace

from cudnnlite.emulated.convolution_call import (
    run_convolution,
    write_max_count,
    write_ranking,
    write_search,
    write_workspace_size,
)
from cudnnlite.emulated.registry import Work, emulates
from cudnnlite.problems.convolution import FORWARD


@emulates("cudnnConvolutionForward")
def forward(c_call: SimpleNamespace) -> Work:
    """`cudnnConvolutionForward`: convolve."""
    return run_convolution(c_call, FORWARD)


@emulates("cudnnGetConvolutionForwardWorkspaceSize")
def workspace_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionForwardWorkspaceSize`: of an algorithm."""
    write_workspace_size(c_call, FORWARD)


@emulates("cudnnGetConvolutionForwardAlgorithmMaxCount")
def max_count(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionForwardAlgorithmMaxCount`: how many there are."""
    write_max_count(c_call, FORWARD)


@emulates("cudnnGetConvolutionForwardAlgorithm_v7")
def heuristic(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionForwardAlgorithm_v7`: rank them without running them."""
    write_ranking(c_call, FORWARD)


@emulates("cudnnFindConvolutionForwardAlgorithmEx")
def search(c_call: SimpleNamespace) -> None:
    """`cudnnFindConvolutionForwardAlgorithmEx`: run them all, and rank them by time."""
    write_search(c_call, FORWARD)
