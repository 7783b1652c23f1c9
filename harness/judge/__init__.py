"""Verdicts from records. Pure."""
