"""`fedray forecast`: min-sep, participations and epsilon of a running deployment at its end."""

from pathlib import Path

from fedray.base.errors import demanded
from fedray.commands.frame.output import print_files, print_result, write_shown
from fedray.commands.frame.progress import progress_line


def forecast(
    trace: Path,
    *,
    rounds: int | None = None,
    scenario: str | None = None,
    claim: Path | None = None,
    in_force: Path | None = None,
    seeds: int = 60,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Forecast min-sep, participations and epsilon of a running deployment at its end.

    The pace of rounds and the activity of devices are fitted to the trace, and continued from its
    last round. Forecasts made at a quarter and a half of the trace stand beside what then happened.
    A forecast is an estimate, so the exit code is 0 even if a claim is likely to break; `fedray
    audit --until` has the verdict.

    Args:
        trace: trace of the rounds so far
        rounds (N): planned rounds; required
        scenario (FILE): scenario with the rules and the population; default: that of the trace;
            the population of a log is estimated
        claim (CLAIM): claim whose limits may break; for a log also its timer and mechanism
        in_force (FILE): rules that the server of a log enforces, as TOML
        seeds (S): continuations
    """
    from fedray.audit.claims import read_claim
    from fedray.scenario import Scenario
    from fedray.scenario.shipped import find_scenario
    from fedray.studies.forecast.forecast import forecast as forecast_of

    planned = demanded("rounds", rounds, "must be given: the planned last round")
    given = None if scenario is None else Scenario.from_toml(find_scenario(scenario))
    claimed = None if claim is None else read_claim(claim)
    with progress_line("forecasting") as show:
        result = forecast_of(
            trace,
            planned,
            scenario=given,
            claim=claimed,
            in_force=in_force,
            seeds=seeds,
            on_progress=show,
        )
    written = write_shown(result, page, figures)
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
