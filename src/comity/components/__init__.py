"""What several methods are made of: divergences, discriminators, attacks, views, class means,
choices of peers.
"""
