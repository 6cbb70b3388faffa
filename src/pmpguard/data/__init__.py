"""Pairs in: tables, formats, images, transforms, batches and the synthetic scenes."""
