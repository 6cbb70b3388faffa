"""Measured runs: recipes, grids, result rows, tables and plots."""
