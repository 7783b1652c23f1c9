"""What runs inside a launch."""
