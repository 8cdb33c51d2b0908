"""The page of one trained run: its metrics, the outcomes of its devices, and its mechanism."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tomli_w

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.base.rounding import counted, given, number_text, up
from fedray.report.audits import guarantees_table
from fedray.report.figure import Axis, Figure, Series, needs_log
from fedray.report.figures import held_out_metrics
from fedray.report.page import render_study
from fedray.report.table import Table
from fedray.trace.learned_from import scenario_of_trained, trace_of
from fedray.trace.trained import LEFT_OUT, TrainedRun, metric_of_answer

WITHOUT_TRACE = "Epsilon is not known, because the trace of this training is not where it was."


def trained_page(
    trained: TrainedRun,
    figures: Sequence[Figure] = (),
    tables: Sequence[Table] = (),
    results: dict[str, Any] | None = None,
    audit: Audit | None = None,
) -> str:
    """Returns the page of a trained run as text.

    Args:
        trained: the run.
        figures: figures to put first.
        tables: tables to put first.
        results: further results for the page's JSON.
        audit: audit of the training; default: that on its trace, if the trace is where it was.
    """
    trace = trace_of(trained) if audit is None else None
    if trace is not None:
        value = scenario_of_trained(trained, trace)
        audit = audit_trace(trace, scenario=value, trained=trained)
    scenario = trained.document["scenario"]
    kind = scenario["privacy"]["mechanism"]["kind"]
    noise = "without noise" if kind == "none" else f"with {kind} noise"
    trained_with = f"Trained {noise} on a trace"
    notes = [
        scenario.get("description", "").rstrip(". "),
        f"{trained_with} (digest {trained.trace_digest})",
    ]
    note = ". ".join(filter(None, notes))
    guarantees = [] if audit is None else [guarantees_table(audit).under(audit.of)]
    heads, values = zip(*_epsilon(audit), *trained.finals, strict=True)
    return render_study(
        scenario["name"],
        f"{note}.",
        [*figures, *trained.figures()],
        [*tables, *guarantees, *trained.tables()],
        {**trained.to_json(), **(results or {})},
        audit.assumptions if audit is not None else (),
        scenario_toml=tomli_w.dumps(scenario),
        tiles=Table("", heads, (values,)),
        verdict=trained_verdict(trained, audit),
        warnings=trained.warnings,
    )


def trained_verdict(trained: TrainedRun, audit: Audit | None) -> str:
    """Returns the held-out metric after the last round, and before the first, and the privacy that
    the audit of the training found."""
    metric = metric_of_answer(trained.task_metrics)
    value, start = trained.last_evaluation()[metric.name].value, trained.document.get("start", {})
    before = f" ({number_text(start[metric.name])} before)" if metric.name in start else ""
    rounds = trained.short or counted(trained.document["rounds"], "round")
    ended = f", after {rounds}"
    if audit is not None and audit.stopped:
        ended = ", after the last round"  # the audit's verdict says which that was
    elif audit is not None and audit.ended != "completed":
        ended += f" ({audit.ended})"
    said = f"{metric.title.capitalize()} {number_text(value)}{before} on {trained.sample}"
    best, of_best = trained.best_evaluation(), trained.best_rounds
    if best is not None and of_best != trained.document["rounds"]:
        by = trained.document["best"]["metric"]
        value = number_text(best[metric.name].value)
        ended += f"; {value} after {counted(of_best or 0, 'round')}, the best by {by}"
    return f"{said}{ended}. {WITHOUT_TRACE if audit is None else audit.verdict}"


def _epsilon(audit: Audit | None) -> Iterator[tuple[str, str]]:
    """Yields the guarantee that a training may state, else the strongest known one, and its
    epsilon."""
    found = None if audit is None else audit.basis.stated
    if found is not None and found.epsilon is not None:
        one = found.sensitivity
        is_exact = one is not None and one.is_exact and found.name != "sampled"
        kind = f"{found.name}, {'exact' if is_exact else 'an upper bound'}"
        rest = "" if found.may_rest_on else "; not for publication"
        # A model on a sample of the devices has less noise than this figure is about.
        if audit is not None and audit.scenario is not None and audit.scenario.trains_a_sample:
            rest += "; of a deployment whose rounds train whole, not of this model"
        yield f"epsilon at delta {given(found.delta)}: {kind}{rest}", up(found.epsilon)


def trained_figures(trained: TrainedRun) -> list[Figure]:
    """Returns, over rounds: every held-out metric, the loss on the devices, clipped updates, the
    clip norm if it changes, and devices left out."""
    columns = trained.metrics
    losses, shares = columns["train_loss"].astype(np.float64), columns["clipped_share"]
    figures = [
        *held_out_metrics(trained),
        Figure(
            "train-loss",
            "Loss on the devices",
            "Mean over the devices of a round, of the model that is sent to them. A gap is a round "
            "in which none trained.",
            Axis("Rounds"),
            Axis("Loss", needs_log([losses]), starts_at_zero=False),
            # If no device trained the loss is NaN, and the step is left out.
            (_steps("loss", columns, losses, np.isfinite(losses)),),
        ),
        Figure(
            "clipped",
            "Clipped updates",
            "Share of a round's devices whose update was scaled down to the clip norm.",
            Axis("Rounds"),
            Axis("Share of the devices"),
            (_steps("clipped", columns, shares, np.isfinite(shares)),),
        ),
    ]
    further = (_clip_norm(columns), _left_out(columns))
    return [*figures, *(figure for figure in further if figure is not None)]


def _clip_norm(columns: dict[str, Any]) -> Figure | None:
    """Returns the clip norm of each round, beside the estimate that it follows; None if it is
    fixed."""
    norms = columns.get("clip_norm", np.array([]))
    estimates = columns.get("counted_norm", np.array([]))
    # A fixed norm may be unrecorded.
    is_known, is_estimated = np.isfinite(norms), np.isfinite(estimates)
    if np.unique(norms[is_known]).size < 2 and not is_estimated.any():
        return None
    note = "The norm to which updates were clipped."
    curves = [_steps("clip norm", columns, norms, is_known)]
    if is_estimated.any():
        note = (
            "The estimate follows a quantile of the updates' norms, by counts to which noise was "
            "added. Updates are clipped to the estimate of the latest round in which the mechanism "
            "began anew."
        )
        curves.append(_steps("estimate", columns, estimates, is_estimated))
    heights = [norms[is_known], estimates[is_estimated]]
    axis = Axis("Norm", needs_log(heights), starts_at_zero=False)
    return Figure("clip-norm", "Clip norm", note, Axis("Rounds"), axis, tuple(curves))


def _left_out(columns: dict[str, Any]) -> Figure | None:
    """Returns the devices that took part but added nothing to the model; None without any."""
    # A cause that never occurred has no line.
    counts = {
        text: columns[name].astype(np.float64)
        for name, text in LEFT_OUT.items()
        if name in columns and columns[name].any()
    }
    if not counts:
        return None
    return Figure(
        "left-out",
        "Devices left out",
        "They took part in the round and added nothing to the model. Noise and denominator stay "
        "what they were.",
        Axis("Rounds"),
        Axis("Devices"),
        tuple(
            _steps(text, columns, values, np.isfinite(values)) for text, values in counts.items()
        ),
    )


def _steps(name: str, columns: dict[str, Any], values: Any, is_shown: Any) -> Series:
    """Returns a step for each round that is shown; it ends when the round was trained."""
    rounds = columns["round"][is_shown].astype(np.float64)
    return Series(name, "steps", rounds, values[is_shown], rounds + 1.0)
