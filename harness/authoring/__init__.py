"""What a workspace declares, and who finds it."""
