"""The library's datasets, a file for each kind; each registers its entries when it is imported."""
