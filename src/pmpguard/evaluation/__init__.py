"""Recall, detection and the tables made of them."""
