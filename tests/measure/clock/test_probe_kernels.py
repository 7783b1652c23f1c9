from types import SimpleNamespace

import pytest
from triton import knobs

from harness.measure import compiles
from harness.measure.clock import probe_kernels
from harness.measure.clock.probe_kernels import TritonProbes
from harness.measure.compiles import Compiles, in_cache


def test_the_engines_own_kernels_are_kept_apart_from_a_variants(tmp_path):
    before = knobs.cache.dir
    assert str(tmp_path) == in_cache(str(tmp_path), lambda: knobs.cache.dir)
    assert before == knobs.cache.dir


def test_where_the_engines_kernels_are_kept_does_not_depend_on_the_variant_in_hand(tmp_path, monkeypatch):
    """Putting a variant's folder into Triton's setting puts it into the environment too."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "launch"))
    monkeypatch.setattr(probe_kernels, "empty_kernel", {(1, 1, 1): lambda: knobs.cache.dir})
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "variant")
        probes = TritonProbes(132, "meta", str(tmp_path / "engine"))
        assert str(tmp_path / "engine") == probes.empty((1, 1, 1))()
        assert str(tmp_path / "variant") == knobs.cache.dir


def test_the_cache_is_put_back_after_an_error(tmp_path):
    before = knobs.cache.dir
    with pytest.raises(ZeroDivisionError):
        in_cache(str(tmp_path), lambda: 1 // 0)
    assert before == knobs.cache.dir


class Driver:
    """Notes where Triton would keep the module that it builds for its driver."""

    def __init__(self):
        self.kept = []

    @property
    def active(self):
        self.kept.append(knobs.cache.dir)
        return SimpleNamespace(utils=None)


@pytest.mark.parametrize("engine", [None, "engine"])
def test_the_drivers_module_is_built_before_a_variant_is_in_hand_where_no_variant_owns_it(tmp_path, monkeypatch, engine):
    driver = Driver()
    monkeypatch.setattr(compiles, "driver", driver)
    Compiles(engine and str(tmp_path / engine))
    assert driver.kept == ([str(tmp_path / engine)] if engine else [])
