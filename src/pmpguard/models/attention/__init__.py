"""The paper in three files: cross-gated attention, awareness attention, the boundary. Plain torch."""
