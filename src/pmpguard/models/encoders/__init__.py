"""Image and text encoders behind one interface each."""
