"""Attention in the styles in which people write it, and the mistakes of the catalog in them."""
