"""Noise mechanisms of DP-FTRL: strategies, their sensitivities, and accounting. Mathematics only;
see README.md."""
