"""Shows a trace and its audit as tables, plots, a progress bar, and one self-contained page."""
