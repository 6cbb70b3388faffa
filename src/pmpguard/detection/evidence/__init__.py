"""One file per kind of evidence that a caption belongs to its image."""
