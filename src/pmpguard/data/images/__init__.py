"""Images in: decoding, bands, roots, transforms, sources."""
