"""CORRUPT: seeded, fingerprinted pseudo-matched training sets."""
