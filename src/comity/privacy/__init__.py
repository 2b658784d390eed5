"""Privacy: noise mechanisms, privacy accounting, and the record of what each party released."""
