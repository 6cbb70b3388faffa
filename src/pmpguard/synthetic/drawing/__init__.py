"""How a scene is drawn."""
