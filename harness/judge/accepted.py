"""The accepted baseline that is nearest to some code in its history: what a fresh time is shown beside. It judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from harness.judge.compare import judge_comparable
from harness.judge.index import value_of
from harness.judge.model import Judgement
from harness.metrics import Rule
from harness.records import Cell, Record, Status


@dataclass(frozen=True)
class Past:
    """A code that the worktree's history has.

    Args:
        code_digest: of kernels/, jobs/, the declared sources and [tool.harness].
        changes: of the code since then.
        commits: since then, along first parents.
    """

    code_digest: str
    changes: int
    commits: int


@dataclass(frozen=True)
class Accepted:
    """What the baselines hold of one cell and metric.

    Args:
        records: one a launch, all of one run.
        past: the code they ran.
    """

    records: tuple[Record, ...]
    past: Past

    @property
    def value(self) -> float:
        """The median over launches."""
        value = value_of(self.records)
        assert value is not None
        return value

    @property
    def converged(self) -> bool:
        """Whether every launch's median settled."""
        return all(record.converged is True for record in self.records)

    def incomparable(self, fresh: Iterable[Record]) -> Judgement | None:
        """INCOMPARABLE naming what differs from fresh times (at least one); None where both may stand side by side."""
        return judge_comparable(Rule.TIME, self.records, fresh)


def nearest_accepted(baselines: Iterable[Record], history: Iterable[Past], cells: Collection[Cell], metric: str) -> dict[Cell, Accepted]:
    """For every cell, its valid accepted records of the nearest code that has any; of several runs of it, the newest.

    Args:
        baselines: accepted records of any run, cell and arm.
        history: nearest first; read no further than needed.
        metric: of a kind that replicates.
    """
    of_code: dict[str, dict[Cell, list[Record]]] = {}
    for record in baselines:
        if record.metric == metric and record.status == Status.OK and record.value is not None and record.cell in cells:
            of_code.setdefault(record.code_digest, {}).setdefault(record.cell, []).append(record)
    found: dict[Cell, Accepted] = {}
    past = iter(history)
    while of_code and len(found) < len(set(cells)) and (code := next(past, None)) is not None:
        for cell, records in of_code.pop(code.code_digest, {}).items():
            run = max((r.run_id, r.arm) for r in records)
            found.setdefault(cell, Accepted(tuple(r for r in records if (r.run_id, r.arm) == run), code))
    return found
