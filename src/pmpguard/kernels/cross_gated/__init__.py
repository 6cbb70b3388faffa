"""Cross-gated attention of all pairs, fused."""
