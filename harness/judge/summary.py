"""What findings add up to beside the verdict: means, coverage, and the noise that cells with equal binaries show."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from harness import metrics
from harness.judge.conclude import compared
from harness.judge.model import Coverage, Finding, Mean, Noise, Reason
from harness.metrics import Rule
from harness.records import Cell


def geometric_means(findings: Sequence[Finding]) -> tuple[Mean, ...]:
    """Head over base by metric and device, over cells that are valid on both sides; others are counted in `of` alone.

    A cell whose value is 0 on a side has no ratio and stays out.
    """
    ratios: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    cells: defaultdict[tuple[str, str], set[Cell]] = defaultdict(set)
    for finding in findings:
        cells[finding.kind, finding.device].add(finding.cell)
        if compared(finding) and finding.ratio:
            ratios[finding.kind, finding.metric, finding.device].append(finding.ratio)
    return tuple(
        Mean(metric, device, metrics.metric(metric).rule, len(found), len(cells[kind, device]), statistics.geometric_mean(found))
        for (kind, metric, device), found in sorted(ratios.items())
    )


def noise(findings: Iterable[Finding]) -> Noise | None:
    """How far the times of cells moved that cannot have changed; None where there is no such cell."""
    proved = [f for f in findings if f.rule == Rule.TIME and f.reason is Reason.PROVED]
    ratios = [f.ratio for f in proved if f.ratio]
    return Noise(len(ratios), statistics.geometric_mean(ratios), min(ratios), max(ratios)) if ratios else None


def coverage(findings: Iterable[Finding]) -> tuple[Coverage, ...]:
    """By device and kind: how many cells were compared, and why the others were not."""
    by_cell: defaultdict[tuple[str, str], defaultdict[Cell, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings:
        by_cell[finding.device, finding.kind][finding.cell].append(finding)
    rows = []
    for (device, kind), cells in sorted(by_cell.items()):
        others = Counter(str(found[0].reason) for found in cells.values() if not any(map(compared, found)))
        rows.append(Coverage(device, kind, len(cells), len(cells) - others.total(), dict(sorted(others.items()))))
    return tuple(rows)
