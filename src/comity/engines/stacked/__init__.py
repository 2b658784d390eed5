"""Many parties' trainings as one computation: the numbers of one by one, up to rounding."""
