"""ENCODE and score: encoders, cross-gated attention, awareness attention, the boundary."""
