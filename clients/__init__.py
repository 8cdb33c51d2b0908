"""The device population: which devices exist, when they are eligible, when they check in, and their
local training."""
