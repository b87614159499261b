"""Reports: one self-contained HTML page from the tables of a warehouse.

A report is one Python file of SQL and plots, with the names that this package exports;
``daily.py`` is such a file. It reads Delta tables with DuckDB over Arrow and needs no Spark.
"""

from headrace.report.day import Day
from headrace.report.definition import Block, Figure, Figures, Plot, Table, job_table, panel
from headrace.report.shapes import bars, groups_by_hour, lines_by_hour, percentiles

__all__ = [
    "Block",
    "Day",
    "Figure",
    "Figures",
    "Plot",
    "Table",
    "bars",
    "groups_by_hour",
    "job_table",
    "lines_by_hour",
    "panel",
    "percentiles",
]
