"""Metrics, custom metrics, and the evaluation of a model at a party."""
