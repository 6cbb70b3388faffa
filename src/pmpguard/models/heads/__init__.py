"""Heads: what a method adds after the encoders, kept and loaded with the model."""
