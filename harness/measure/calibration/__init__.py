"""Calibration: what a unit's clock, launches, memory and cache are like, and how right the times are that it gives."""
