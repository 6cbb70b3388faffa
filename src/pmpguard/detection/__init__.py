"""CATCH: scores in, verdicts out; pure functions."""
