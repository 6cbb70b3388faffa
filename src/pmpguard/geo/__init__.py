"""Satellite scenes: where and when they were taken, tiles, footprints, STAC and GeoJSON."""
