"""Kinds of issues beside mismatch: for each a score in [0, 1], low where it is bad, and a flag."""
