"""The table of metrics: name, unit, which way is better, how it is judged, how it comes about. One row adds one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
    Metric("append_us", "latency", "us", "lower", Rule.CONTEXT, "device time of a cycle's other steps than that of fold_us, their mean"),
    Metric("fold_us", "latency", "us", "lower", Rule.CONTEXT, "device time of a cycle's most expensive step, timed alone"),
    Metric("worst_step_us", "latency", "us", "lower", Rule.TIME, "the same time as fold_us, and judged"),
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
    Metric(
        "max_ulp_error",
        "correctness",
        "ulp",
        "lower",
        Rule.CONTEXT,
        "most representable values of the tensor's dtype between it and the reference rounded to that dtype",
    ),
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
    Metric(
        "compile_s",
        "static",
        "s",
        "lower",
        Rule.CONTEXT,
        "time of compiling; what was in memory or in Triton's cache costs none",
    ),
    Metric("tick_ns", "calibration", "ns", "lower", Rule.CONTEXT, "resolution of the device's event clock"),
    Metric(
        "floor_us",
        "calibration",
        "us",
        "lower",
        Rule.CONTEXT,
        "a call that does nothing, by mode (@pair, @device, @graph1, @eager, @enqueue) or what waiting for one costs (@wait)",
    ),
    Metric("empty_us", "calibration", "us", "lower", Rule.CONTEXT, "an empty kernel of @n programs, a node among many"),
    Metric("touch_us", "calibration", "us", "lower", Rule.CONTEXT, "a kernel of @n programs with one cold load and one store each"),
    Metric("graph_replay_us", "calibration", "us", "lower", Rule.CONTEXT, "one replay of a graph of @n empty kernels on an idle device"),
    Metric("graph_node_us", "calibration", "us", "lower", Rule.CONTEXT, "a node of such graphs of @n, replayed one after another"),
    Metric(
        "graph_host_us", "calibration", "us", "lower", Rule.CONTEXT, "host time of replaying such a graph of @n once and waiting for it"
    ),
    Metric("copy_gbps", "calibration", "GB/s", "higher", Rule.CONTEXT, "bytes read and written by copying buffers of @n bytes, cold"),
    Metric("read_gbps", "calibration", "GB/s", "higher", Rule.CONTEXT, "bytes of reading buffers of @n bytes, cold"),
    Metric("warm_copy_gbps", "calibration", "GB/s", "higher", Rule.CONTEXT, "as copy_gbps, one pair of buffers in the cache"),
    Metric("warm_read_gbps", "calibration", "GB/s", "higher", Rule.CONTEXT, "as read_gbps, one buffer in the cache"),
    Metric("warm_cold_ratio", "calibration", "x", "neither", Rule.CONTEXT, "warm over cold bandwidth of copying buffers of @n bytes"),
    Metric("ring_copy_gbps", "calibration", "GB/s", "neither", Rule.CONTEXT, "copying over a ring of @x last-level caches"),
    Metric("ring_read_gbps", "calibration", "GB/s", "neither", Rule.CONTEXT, "reading over a ring of @x last-level caches"),
    Metric("aa_us", "calibration", "us", "lower", Rule.CONTEXT, "latency_us of equal code, the median over launches"),
    Metric("aa_between_percent", "calibration", "%", "lower", Rule.CONTEXT, "standard deviation between the launches' medians, relative"),
    Metric(
        "aa_within_percent",
        "calibration",
        "%",
        "lower",
        Rule.CONTEXT,
        "standard error of one launch's median by its own samples (batch means), relative; the median over launches",
    ),
    Metric("timer_tick_ns", "calibration", "ns", "lower", Rule.CONTEXT, "resolution of the timer that kernels can read"),
    Metric(
        "clock_ratio",
        "calibration",
        "x",
        "neither",
        Rule.CONTEXT,
        "what the event clock says of a second of work over what the host's clock says",
    ),
    Metric("spin_us", "calibration", "us", "lower", Rule.CONTEXT, "device time of a kernel that spins for @n ns"),
    Metric("spin_true_us", "calibration", "us", "lower", Rule.CONTEXT, "the same spin by the timer that the kernel reads"),
    Metric(
        "spin_slope_percent",
        "calibration",
        "%",
        "neither",
        Rule.CONTEXT,
        "how far spin_us grows faster than spin_true_us, by a line through all",
    ),
    Metric("spin_offset_us", "calibration", "us", "lower", Rule.CONTEXT, "where that line begins: what launching a kernel adds"),
    Metric("slowdown_percent", "calibration", "%", "neither", Rule.CONTEXT, "slow-down of a call, read back from pairs, of @x % injected"),
    Metric(
        "slowdown_true_percent", "calibration", "%", "neither", Rule.CONTEXT, "what was injected of @x % by the timer that the kernel reads"
    ),
    Metric("slowdown_half_width_percent", "calibration", "%", "lower", Rule.CONTEXT, "half width of the 95 % interval of slowdown_percent"),
    Metric("copy_us", "calibration", "us", "lower", Rule.CONTEXT, "device time of copying @n bytes, cold"),
    Metric(
        "copy_marginal_gbps", "calibration", "GB/s", "higher", Rule.CONTEXT, "what copying more bytes adds, by a line through all copy_us"
    ),
    Metric("copy_off_percent", "calibration", "%", "lower", Rule.CONTEXT, "the farthest that a copy_us lies off that line"),
    Metric("ncu_us", "calibration", "us", "lower", Rule.CONTEXT, "gpu__time_duration of a call's kernels by ncu, summed"),
    Metric("model_bytes", "calibration", "B", "lower", Rule.CONTEXT, "compulsory bytes of a call by the kernel's cost model"),
    Metric("counted_bytes", "calibration", "B", "lower", Rule.CONTEXT, "bytes that the memory's counters saw of a call, by ncu"),
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


def speaks_for_cell(kind: str, metric: str | None) -> bool:
    """Whether what became of a metric became of the cell: of the kind's main one, or of all, where None."""
    return metric is None or base_name(metric) == PRIMARY.get(kind)


def is_judged(metric: str | None) -> bool:
    """Whether a diff may decide by what became of a metric; of all of a cell's, where None."""
    row = None if metric is None else METRICS.get(base_name(metric))
    return row is None or row.rule is not Rule.CONTEXT


def spread_percent(values: Sequence[float]) -> float | None:
    """(max - min) / median, in percent; None with fewer than two values, or where the median is 0."""
    middle = statistics.median(values) if len(values) > 1 else 0
    return 100 * (max(values) - min(values)) / middle if middle else None
