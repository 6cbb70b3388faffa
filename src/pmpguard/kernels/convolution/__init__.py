"""Convolutions with their activations in one pass over memory."""
