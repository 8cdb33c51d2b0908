"""Work: what a selected device computes, one file per kind."""
