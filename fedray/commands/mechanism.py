"""`fedray mechanism`: loss, sensitivity and privacy of mechanisms at a setting."""

from pathlib import Path

from fedray.commands.frame.output import print_files, print_result, write_shown


def mechanism(
    mechanisms: list[Path],
    *,
    rounds: int | None = None,
    min_sep: int | None = None,
    max_participations: int | None = None,
    is_fixed_order: bool = False,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float = 1e-10,
    sampling: float | None = None,
    random_rounds: bool = False,
    workload: str = "prefix",
    loss: str = "rms",
    coefficients: Path | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compute loss and sensitivity of mechanisms at a setting, and their privacy with noise.

    --rounds, --min-sep and --max-participations are required. Several mechanisms are one table:
    compare their losses, each of which is the noise at equal privacy, of prefix sums or of another
    workload. A mechanism is a JSON file of `fedray optimize --out`, a matrix as .npy, or a kind
    that follows from the setting.

    Args:
        mechanisms (MECHANISM): file, or blt-100, blt-400, blt-1000, tree, tree-full, identity,
            band-fhu or bisr
        workload (W): prefix, or parts joined by commas: momentum=0.9, decay=0.95,
            schedule=SCENARIO.toml
        loss (max|rms): loss to compare by, and to choose the bands of band-fhu and bisr for
        coefficients (FILE): C over all rounds: .csv for the coefficients of Toeplitz mechanisms, or
            .npy for the matrix of one mechanism
    Privacy, by one of the first three:
        noise_multiplier (Z): noise multiplier, for rho and epsilon
        epsilon (E): largest epsilon allowed, for the least noise multiplier
        rho (R): largest rho (zCDP) allowed, for the least noise multiplier
        delta (D): delta of epsilon
        sampling (P): hypothetical probability that a device is drawn in a round
        random_rounds: a sampled device rests for min-sep - 1 rounds
    """
    from fedray.mechanisms.figures import Mechanisms
    from fedray.mechanisms.files import write_coefficients
    from fedray.runs.design import evaluate_mechanisms

    found = evaluate_mechanisms(
        mechanisms,
        *(rounds, min_sep, max_participations),
        noise_multiplier,
        delta,
        sampling,
        workload,
        is_fixed_order,
        has_random_rounds=random_rounds,
        epsilon=epsilon,
        rho=rho,
        loss=loss,
    )
    # One mechanism has all its figures; several share a table of the comparable ones.
    result = next(iter(found.values())) if len(found) == 1 else Mechanisms(found)
    written = write_shown(Mechanisms(found), page, figures)
    if coefficients is not None:
        strategies = {name: each.strategy for name, each in found.items()}
        write_coefficients(strategies, Mechanisms(found).first.participation.rounds, coefficients)
        written["coefficients"] = str(coefficients)
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
