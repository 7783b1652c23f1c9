"""What tests of whole runs without a GPU share."""

from collections.abc import Callable

import pytest

from harness.authoring.workspace import Workspace, find_workspace
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo


@pytest.fixture
def timed_workspace(repository, monkeypatch) -> Callable[..., Workspace]:
    """`timed_workspace("double", "twice")`: a committed workspace that says it has one case of these variants to time on an h200, the
    first the default and the last the baseline.
    """

    def make(*variants: str) -> Workspace:
        cases = [CaseInfo("N=8,dtype=fp32", ["smoke"])]
        kernel = KernelInfo("scale", "kernels/scale.py", "", list(variants), variants[0], variants[-1], cases, [], False, False)
        cells = [KindCell("scale", variant, cases[0].case, None) for variant in variants]
        kinds = [KindInfo("latency", "latency.py", "unit", 1.0, 60.0, True, cells)]
        monkeypatch.setattr("harness.plan.plan.describe", lambda workspace: Description([kernel], kinds))
        repository.job("pass", kind="latency")
        repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "latency"\ndevices = ["h200"]\n')
        repository.commit()
        return find_workspace(repository.root)

    return make
