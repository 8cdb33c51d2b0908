"""The device population: who the devices are, when they are eligible, when they check in, and their
local training."""
