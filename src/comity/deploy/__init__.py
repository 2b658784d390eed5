"""Runs between real sites: each party's data and state stay at its site, and a server without data
conducts the rounds.

`transport` is the interface that carries requests and replies; `flare` implements it with NVIDIA
FLARE.
"""
