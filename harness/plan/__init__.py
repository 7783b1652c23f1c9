"""Refs and trees, matrix to cells to jobs. Pure but for git and files."""
