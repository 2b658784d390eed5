"""Components that several methods share: divergences, discriminators, attacks, views, class means,
choices of peers.
"""
