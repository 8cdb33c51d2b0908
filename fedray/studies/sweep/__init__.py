"""What happens if the guess was wrong: sweeps of settings or simulated runs, and how mechanisms
made for the guess fare there."""
