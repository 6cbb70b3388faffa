"""Losses: tensors in, named per-pair terms out; weights multiply, then reduce."""
