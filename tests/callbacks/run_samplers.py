"""Rounds of a sampler in docs/callbacks, as JSON: `python run_samplers.py CALLBACKS NAME ROUNDS`."""

import itertools
import json
import sys

sys.path.insert(0, sys.argv[1])
import samplers

rounds = getattr(samplers, sys.argv[2])()
found = list(itertools.islice(rounds, int(sys.argv[3])))
print(json.dumps([getattr(each, "tolist", lambda each=each: each)() for each in found]))
