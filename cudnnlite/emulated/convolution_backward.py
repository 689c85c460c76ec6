"""Emulated gradients of convolutions, as the descriptor calls know them."""

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
from cudnnlite.problems.convolution_backward import DATA, FILTER


@emulates("cudnnConvolutionBackwardData")
def data_gradient(c_call: SimpleNamespace) -> Work:
    """`cudnnConvolutionBackwardData`: compute the gradient of the images."""
    return run_convolution(c_call, DATA)


@emulates("cudnnGetConvolutionBackwardDataWorkspaceSize")
def data_workspace_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardDataWorkspaceSize`: of an algorithm."""
    write_workspace_size(c_call, DATA)


@emulates("cudnnGetConvolutionBackwardDataAlgorithmMaxCount")
def data_max_count(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardDataAlgorithmMaxCount`: how many there are."""
    write_max_count(c_call, DATA)


@emulates("cudnnGetConvolutionBackwardDataAlgorithm_v7")
def data_heuristic(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardDataAlgorithm_v7`: rank them without running them."""
    write_ranking(c_call, DATA)


@emulates("cudnnFindConvolutionBackwardDataAlgorithmEx")
def data_search(c_call: SimpleNamespace) -> None:
    """`cudnnFindConvolutionBackwardDataAlgorithmEx`: run them all, and rank them by time."""
    write_search(c_call, DATA)


@emulates("cudnnConvolutionBackwardFilter")
def filter_gradient(c_call: SimpleNamespace) -> Work:
    """`cudnnConvolutionBackwardFilter`: compute the gradient of the filter."""
    return run_convolution(c_call, FILTER)


@emulates("cudnnGetConvolutionBackwardFilterWorkspaceSize")
def filter_workspace_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardFilterWorkspaceSize`: of an algorithm."""
    write_workspace_size(c_call, FILTER)


@emulates("cudnnGetConvolutionBackwardFilterAlgorithmMaxCount")
def filter_max_count(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardFilterAlgorithmMaxCount`: how many there are."""
    write_max_count(c_call, FILTER)


@emulates("cudnnGetConvolutionBackwardFilterAlgorithm_v7")
def filter_heuristic(c_call: SimpleNamespace) -> None:
    """`cudnnGetConvolutionBackwardFilterAlgorithm_v7`: rank them without running them."""
    write_ranking(c_call, FILTER)


@emulates("cudnnFindConvolutionBackwardFilterAlgorithmEx")
def filter_search(c_call: SimpleNamespace) -> None:
    """`cudnnFindConvolutionBackwardFilterAlgorithmEx`: run them all, and rank them by time."""
    write_search(c_call, FILTER)
