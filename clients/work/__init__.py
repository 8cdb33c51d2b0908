"""Work of a selected device, one file per kind."""
