"""From a folder of imagery to answers: embeddings, versioned indexes, two-stage search."""
