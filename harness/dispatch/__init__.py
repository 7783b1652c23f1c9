"""Carries jobs to units and records back."""
