"""A privacy odometer for a Flower training: nodes at their budget are not selected again.

    odometer = fedray.Odometer("blt.json", 100, noise_multiplier=7.0, delta=1e-8, epsilon=6.0)
    metered(CorrelatedNoiseFedAvg(noise, ...), odometer).start(grid, arrays, num_rounds=100)

Of several strategies that wrap one another, meter the outermost.
"""


def metered(strategy, odometer):
    """The strategy, which from now on selects only nodes within the budget and counts every
    released round. Rounds that release nothing, and nodes that fail, cost nothing."""
    configure_train, aggregate_train = strategy.configure_train, strategy.aggregate_train

    def configure_within_budget(server_round, arrays, config, grid):
        messages = list(configure_train(server_round, arrays, config, grid))
        nodes = [each.metadata.dst_node_id for each in messages]
        spent = set(odometer.would_exceed(odometer.rounds, nodes))
        return [each for each in messages if each.metadata.dst_node_id not in spent]

    def aggregate_and_count(server_round, replies):
        replies = list(replies)
        arrays, metrics = aggregate_train(server_round, replies)
        if arrays is not None:
            used = [each.metadata.src_node_id for each in replies if not each.has_error()]
            odometer.add(odometer.rounds, used)
            print(odometer)
        return arrays, metrics

    strategy.configure_train = configure_within_budget
    strategy.aggregate_train = aggregate_and_count
    return strategy
