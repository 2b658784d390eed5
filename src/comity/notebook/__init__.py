"""Views in notebooks: results, comparisons and federations, and the progress of runs.

All views are HTML and SVG without scripts. Text and lines have the notebook's own colour
(`currentColor`), so that they are legible in light and dark themes. The colours of curves have
contrast to both.
"""
