"""Correlated noise in a training with Opacus, which clips and averages as before.

    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=64)
    noise = fedray.CorrelatedNoise(
        strategy, steps, optimizer.params, noise_multiplier=4.0, clip_norm=1.0
    )
    with_correlated_noise(optimizer, noise)

Opacus' accountants do not know of this noise: `noise.rho` and `noise.epsilon` do. Batches must not
be Poisson samples: examples come in one fixed order, as the participation says.
"""


def with_correlated_noise(optimizer, noise):
    """The optimizer, whose every step from now on adds the next row of the noise, and no other."""
    if optimizer.noise_multiplier != 0.0:
        raise ValueError(
            f"noise_multiplier={optimizer.noise_multiplier} of the optimizer must be 0; its "
            "independent noise would come on top"
        )
    if optimizer.max_grad_norm != noise.clip_norm:
        raise ValueError(
            f"max_grad_norm={optimizer.max_grad_norm} of the optimizer must be the noise's "
            f"clip_norm={noise.clip_norm}, to which the noise is scaled"
        )

    def add(stepping):
        is_mean = stepping.loss_reduction == "mean"
        batch = stepping.expected_batch_size * stepping.accumulated_iterations
        noise.add_((each.grad for each in stepping.params), divisor=batch if is_mean else 1.0)

    optimizer.attach_step_hook(add)
    return optimizer
