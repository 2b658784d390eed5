"""Advice on a federation: which method to use, whether to stay alone, or what cannot be told."""
