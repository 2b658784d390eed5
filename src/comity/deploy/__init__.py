"""Runs between real sites: each party's data and state stay where they are, a server without data
conducts the rounds.

`transport` is what carries requests and answers, `flare` the one that does it with NVIDIA FLARE.
"""
