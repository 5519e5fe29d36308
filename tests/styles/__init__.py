"""Attention in the styles in which people write it, and the catalog's mistakes written once more in each of them."""
