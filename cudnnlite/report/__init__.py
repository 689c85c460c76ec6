"""The results of a tuning as an HTML page, as JSON, and as charts."""

from cudnnlite.report.page import SCHEMA, to_json, write_html
from cudnnlite.report.plots import plot_model, plot_pareto, plot_times, plot_workspace, save_chart

__all__ = [
    "SCHEMA",
    "plot_model",
    "plot_pareto",
    "plot_times",
    "plot_workspace",
    "save_chart",
    "to_json",
    "write_html",
]
