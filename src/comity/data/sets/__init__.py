"""The datasets of the library by kind; each module registers its entries when imported."""
