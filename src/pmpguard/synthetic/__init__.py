"""Synthetic scenes: drawn overhead scenes with known truth, any number, from a seed."""
