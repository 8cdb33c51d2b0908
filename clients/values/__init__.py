"""Values of devices that questions are about, one file per kind."""
