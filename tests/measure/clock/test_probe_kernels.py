import pytest
from triton import knobs

from harness.measure.clock.probe_kernels import in_cache


def test_the_engines_own_kernels_are_kept_apart_from_a_variants(tmp_path):
    before = knobs.cache.dir
    assert str(tmp_path) == in_cache(str(tmp_path), lambda: knobs.cache.dir)
    assert before == knobs.cache.dir


def test_the_cache_is_put_back_after_an_error(tmp_path):
    before = knobs.cache.dir
    with pytest.raises(ZeroDivisionError):
        in_cache(str(tmp_path), lambda: 1 // 0)
    assert before == knobs.cache.dir
