"""What the profiled process says at its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.measure.calibration import profiled


@pytest.fixture
def main(tmp_path, monkeypatch):
    """Runs a profiled process of two calls without a GPU; `main.done` is what it writes."""
    spec, done = tmp_path / "spec.json", tmp_path / "done.json"
    spec.write_text(json.dumps({"done": str(done)}))
    monkeypatch.setattr(sys, "argv", ["profiled", str(spec)])
    monkeypatch.setattr(profiled, "marker_kernel", {(1,): lambda: None})
    monkeypatch.setattr(profiled, "_calls", lambda spec: iter([None, None]))
    monkeypatch.setattr(profiled, "_profile", lambda number, make: "OutOfMemoryError" if number else None)

    def run():
        profiled.main()

    run.done = done
    return run


def test_what_became_of_each_call_is_written_at_the_end(main):
    main()
    assert [None, "OutOfMemoryError"] == json.loads(main.done.read_text())
    assert {"spec.json", "done.json"} == {file.name for file in main.done.parent.iterdir()}


def test_a_process_that_ends_while_it_writes_leaves_no_half_of_it(main, monkeypatch):
    real = Path.write_text

    def torn(file, text):
        real(file, text[:5])
        raise SystemExit(9)

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(SystemExit):
        main()
    assert not main.done.exists()
