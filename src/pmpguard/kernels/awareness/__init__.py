"""Awareness attention of all pairs, fused."""
