"""A log of who took part in which round of a Flower training, for `fedray import`.

    strategy = logged(FedAvg(...), "log.csv")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

Copy this file: it needs nothing but the standard library. Of several strategies that wrap one
another, log the outermost.
"""

import csv
import time


def logged(strategy, path):
    """The strategy, which from now on writes device, round and time of every update that it used.

    Rounds in which it released nothing, and clients that failed, are left out. `path` must be new.
    """
    with open(path, "x", newline="") as file:
        csv.writer(file).writerow(["device", "round", "time"])
    aggregate_train = strategy.aggregate_train

    def aggregate_and_log(server_round, replies):
        replies = list(replies)
        arrays, metrics = aggregate_train(server_round, replies)
        if arrays is not None:
            with open(path, "a", newline="") as file:
                for reply in replies:
                    if not reply.has_error():
                        device = reply.metadata.src_node_id
                        csv.writer(file).writerow([device, server_round, time.time()])
        return arrays, metrics

    strategy.aggregate_train = aggregate_and_log
    return strategy
