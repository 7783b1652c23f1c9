"""`harness fleet`, as far as no cluster is needed; tests/dispatch/ray/ has the rest."""


def test_listing_needs_an_address(harness):
    answer = harness("fleet")
    assert 2 == answer.code
    assert "harness fleet up --simulate DEVICES" in answer.err


def test_an_address_where_nobody_answers_is_undecided(harness):
    answer = harness("fleet", "--address", "127.0.0.2:1")
    assert 3 == answer.code
    assert "nobody answers within 3 s" in answer.err


def test_an_address_that_is_none_is_said(harness):
    for command in (["fleet"], ["submit", "--dispatcher", "ray"]):
        answer = harness(*command, "--address", "gpu-host")
        assert 2 == answer.code
        assert "--address gpu-host" in answer.err
        assert "it is neither HOST:PORT nor `local`" in answer.err


def test_a_device_that_no_row_names_is_said_before_anything_starts(harness):
    for name in ("x1", "cpu"):
        answer = harness("fleet", "up", "--simulate", f"a10g,{name}")
        assert 2 == answer.code
        assert f"device '{name}'" in answer.err
