"""Mechanisms that make messages private, and the accounts of what was given away."""
