from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.measure.torch_state import kept

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float16)),
    "default device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "grad mode": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "precision": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("medium")),
    "determinism": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
}


@pytest.mark.parametrize(("asked", "change"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("error", [None, ValueError], ids=["it returns", "it raises"])
def test_a_setting_is_put_back(asked: Callable[[], Any], change: Callable[[], Any], error: type[Exception] | None) -> None:
    before = asked()

    def run() -> None:
        with kept():
            change()
            assert asked() != before
            if error:
                raise error

    if error:
        with pytest.raises(error):
            run()
    else:
        run()
    assert asked() == before
