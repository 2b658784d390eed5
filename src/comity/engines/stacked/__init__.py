"""Batched training of many parties: the results of sequential training, up to rounding."""
