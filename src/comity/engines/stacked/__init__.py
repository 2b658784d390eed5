"""Many parties' trainings as one computation."""
