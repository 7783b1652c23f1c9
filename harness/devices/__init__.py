"""The list of GPUs, and the identity of the unit in hand."""
