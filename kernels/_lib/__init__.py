"""What several kernel files share."""
