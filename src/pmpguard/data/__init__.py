"""Pairs in: tables, formats, images, transforms, batches and the embedded world."""
