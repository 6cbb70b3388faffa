"""Models in the forms of other packages: ONNX, transformers, OpenCLIP, sentence-transformers, MTEB."""
