"""Loads the harness's pytest plugin when a job file is run by hand: `pytest jobs/correctness.py --device cpu`."""

pytest_plugins = ["harness.measure.plugin"]
