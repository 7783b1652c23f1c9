"""Renders one JSON into text, JSON and Markdown. Pure."""
