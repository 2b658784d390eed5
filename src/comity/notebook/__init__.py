"""What a notebook shows: results, comparisons and federations as small tables and curves, and a run
while it goes on.

All of it is HTML and SVG without a script. Colours of text and lines are the notebook's own
(`currentColor`), so that it reads in the light and in the dark; those of curves stand out from
both.
"""
