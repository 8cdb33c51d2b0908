"""Does the trace support the claim? Reads the trace and the mechanisms, never the simulator."""
