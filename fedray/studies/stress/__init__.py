"""The cost of a misestimated min-sep, mechanism by mechanism: privacy, noise and error."""
