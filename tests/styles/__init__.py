"""Attention as it is written elsewhere, in several styles, and the catalog's mistakes made in each."""
