"""The sections of the page, a module each. `reporting.build_sections` has their order."""
