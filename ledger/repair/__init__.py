"""Finds what has too few copies, and makes them."""
