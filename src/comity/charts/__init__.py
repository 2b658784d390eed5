"""Charts: one description and one Vega-Lite builder for the page, figures, notebooks and papers.

`chart` has the description of any chart: a data table and a Vega-Lite specification over it.
`encodings` has the parts that specifications share. `curves` builds the layers of lines, and
describes curves by round, which the terminal draws as text. `render` writes svg, pdf and png.
Colours have names such as "@bad", which a theme (`themes`) maps to values.
"""
