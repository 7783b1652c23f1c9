"""The table of metrics: name, unit, which way is better, how it is judged, how it comes about. One row adds one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """How a diff judges a metric."""

    TIME = "time"
    """By statistics over launches."""
    ERROR = "error"
    """More than twice the base's error and by more than 1 % of the tolerance, or beyond tolerance."""
    GROWTH = "growth"
    """Growth of more than 10 %."""
    ANY_GROWTH = "any_growth"
    """Any growth."""
    CONTEXT = "context"
    """Never judged; shown beside what is."""


@dataclass(frozen=True)
class Metric:
    """One row: `kind` is the job that records it, `better` is `lower`, `higher` or `neither`."""

    name: str
    kind: str
    unit: str
    better: str
    rule: Rule
    how: str


_ROWS = (
    Metric("latency_us", "latency", "us", "lower", Rule.TIME, "device time of one call, cold, independent ring; a cycle's amortised step"),
    Metric("chained_us", "latency", "us", "lower", Rule.CONTEXT, "device time of one call that depends on the call before"),
    Metric("append_us", "latency", "us", "lower", Rule.CONTEXT, "device time of the cheap steps of a cycle"),
    Metric("fold_us", "latency", "us", "lower", Rule.CONTEXT, "device time of the expensive step of a cycle"),
    Metric("worst_step_us", "latency", "us", "lower", Rule.TIME, "device time of the slowest step of a cycle"),
    Metric("latency_warm_us", "latency", "us", "lower", Rule.CONTEXT, "device time of one call, one buffer"),
    Metric("latency_serving_us", "latency", "us", "lower", Rule.CONTEXT, "device time, state and weights cold, activations hot"),
    Metric("graph1_us", "latency", "us", "lower", Rule.CONTEXT, "time of one replay of a graph of one call"),
    Metric("eager_us", "latency", "us", "lower", Rule.CONTEXT, "host time of back-to-back calls with a final synchronise"),
    Metric("enqueue_us", "latency", "us", "lower", Rule.CONTEXT, "host time of one call until it returns"),
    Metric("gbps", "latency", "GB/s", "higher", Rule.CONTEXT, "compulsory bytes over latency_us"),
    Metric("percent_of_ceiling", "latency", "%", "higher", Rule.CONTEXT, "gbps over this unit's own measured bandwidth"),
    Metric("percent_of_peak", "latency", "%", "higher", Rule.CONTEXT, "gbps over the published peak"),
    Metric("speedup", "latency", "x", "higher", Rule.CONTEXT, "baseline variant's latency_us over this one's"),
    Metric(
        "interpreter_us", "latency", "us", "lower", Rule.CONTEXT, "host time of one call in Triton's interpreter; says nothing of a GPU"
    ),
    Metric("rel_l2_error", "correctness", "1", "lower", Rule.ERROR, "largest relative L2 error over outputs and mutated tensors"),
    Metric("max_abs_error", "correctness", "1", "lower", Rule.CONTEXT, "largest absolute error"),
    Metric("max_ulp_error", "correctness", "ulp", "lower", Rule.CONTEXT, "largest error in units in the last place of the tensor's dtype"),
    Metric("cosine", "correctness", "1", "higher", Rule.CONTEXT, "smallest cosine similarity with the reference"),
    Metric("drift_rel_error", "drift", "1", "lower", Rule.ERROR, "relative L2 error of the carried state after @n steps"),
    Metric("drift_cosine", "drift", "1", "higher", Rule.CONTEXT, "cosine similarity of the carried state after @n steps"),
    Metric("drift_norm_ratio", "drift", "1", "neither", Rule.CONTEXT, "norm of the carried state over the reference's after @n steps"),
    Metric("registers", "static", "1", "lower", Rule.GROWTH, "registers a thread, the largest over the cell's kernel launches"),
    Metric("spill_bytes", "static", "B", "lower", Rule.ANY_GROWTH, "bytes a thread spills (AMD: stores alone), summed over launches"),
    Metric("stack_bytes", "static", "B", "lower", Rule.ANY_GROWTH, "stack frame a thread, the largest over launches"),
    Metric("shared_bytes", "static", "B", "lower", Rule.CONTEXT, "shared memory a block, the largest over launches"),
    Metric("code_bytes", "static", "B", "lower", Rule.GROWTH, "machine code, summed over the distinct binaries"),
    Metric("kernel_launches", "static", "1", "lower", Rule.ANY_GROWTH, "kernel launches of one call"),
    Metric("compile_s", "static", "s", "lower", Rule.CONTEXT, "time to compile what was not compiled before"),
)

METRICS = {row.name: row for row in _ROWS}

PRIMARY = {"latency": "latency_us", "correctness": "rel_l2_error", "drift": "drift_rel_error", "static": "registers"}
"""The metric under which a cell that has no value at all is reported, by kind."""


def base_name(metric: str) -> str:
    """`drift_rel_error@100` -> `drift_rel_error`; `gbps@published` -> `gbps`."""
    return metric.partition("@")[0]


def metric(name: str) -> Metric:
    """The row of a metric, what follows `@` ignored (KeyError where there is none)."""
    return METRICS[base_name(name)]
