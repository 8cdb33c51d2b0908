"""From a sensitivity and a noise multiplier to (rho, epsilon, delta)."""
