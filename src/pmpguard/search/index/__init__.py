"""An index on disk: versions, the writer, updates."""
