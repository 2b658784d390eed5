"""Where parties live, and how their works are run: in this process, in several, stacked."""
