"""Studies: questions that one run does not answer. Each makes several runs, or settings, and
compares them."""
