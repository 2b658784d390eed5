"""An experiment from its settings to its results: one run, and the folder it leaves."""
