"""Draws the result: the spending of each country over the day."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rmqkit.demos.spark.events import COUNTRIES, WINDOW_MINUTES, Sums


def draw(sums: Sums, file: Path) -> None:
    """Save a PNG of 1200 x 675 pixels. Raises OSError."""
    from matplotlib.dates import DateFormatter, HourLocator
    from matplotlib.figure import Figure

    starts = sorted({start for start, _ in sums})
    times = [datetime.fromtimestamp(start, UTC) for start in starts]
    figure = Figure(figsize=(12, 6.75), dpi=100, layout="constrained")
    axes = figure.subplots()
    spent = [
        [sums[start, country].cents / 100_000 if (start, country) in sums else 0.0 for start in starts]
        for country in COUNTRIES
    ]
    axes.stackplot(times, spent, labels=list(COUNTRIES))  # type: ignore[arg-type]
    orders, total = (
        sum(each.orders for each in sums.values()),
        sum(each.cents for each in sums.values()) / 100,
    )
    axes.set_title(
        f"{orders:,} orders of {total:,.0f} euros, streamed through rmqkit and summed by Spark", fontsize=15
    )
    axes.set_xlabel(f"{times[0]:%A, %d %B %Y}, UTC", fontsize=12)
    axes.set_ylabel(f"thousand euros in {WINDOW_MINUTES} minutes", fontsize=12)
    axes.xaxis.set_major_locator(HourLocator(range(0, 24, 3)))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    axes.margins(x=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", reverse=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
