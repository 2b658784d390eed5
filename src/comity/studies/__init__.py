"""Several runs side by side, and what is done with finished ones."""
