"""How benchmarks speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from relevo.bench.machine import describe_machine


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def emit(
    model: str,
    settings: dict[str, Any],
    results: Sequence[dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """One JSON object, or a table of the medians."""
    if as_json:
        report = {
            "machine": describe_machine(),
            "model": model,
            "settings": settings,
            "results": list(results),
        }
        print(json.dumps(report, indent=2))
        return
    print_table(
        [column.replace("_", " ") for column in results[0]],
        [[_cell(value) for value in row.values()] for row in results],
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Fits a terminal of 80 columns: headers break at every word, cells never."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for place, column in enumerate(columns):
        table.add_column(
            "\n".join(column.split()),
            justify="right" if place else "left",
            no_wrap=True,
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        value = value["p50"]
    return f"{value:.2f}" if isinstance(value, float) else str(value)
