"""The parts of the page, in the order in which a reader wants them."""
