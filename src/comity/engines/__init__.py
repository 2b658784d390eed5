"""Where parties run: in this process, in several, batched, or on a Ray cluster."""
