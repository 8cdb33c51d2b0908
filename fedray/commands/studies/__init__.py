"""The commands of studies, which are deleted with them."""
