"""Learning from a trace: train, compare, evaluate."""

import contextlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.commands.output import (
    FiguresOption,
    JsonFlag,
    PageOption,
    QuietFlag,
    TrustFlag,
    print_json,
    print_pieces,
    progress_line,
    resumable,
    scenario_argument,
)

InProcessFlag = Annotated[
    bool | None,
    typer.Option(
        "--in-process/--ray",
        help="Where workers run: in this process, or as Ray actors. Default: whichever is faster; "
        "a long training on more than four CPUs gains by Ray. The result is the same.",
        show_default=False,
    ),
]
TrainersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Trainers of the model: Ray actors, or threads of this process; default: one per CPU.",
    ),
]
AggregatorGpusOption = Annotated[
    float,
    typer.Option(
        metavar="F",
        help="GPUs for the aggregator, 0 to 1; 0: the CPU. The model depends on it.",
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="Ray cluster to join: auto, ray://host:port; default: a local one."),
]
CheckpointOption = Annotated[
    float,
    typer.Option(metavar="S", help="Wall-clock seconds between two checkpoints; 0: always."),
]
WorkerTimeoutOption = Annotated[
    float,
    typer.Option(
        metavar="S", help="Seconds without an answer after which a worker is started anew."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. rounds.report_goal=3000."
    ),
]

TensorboardOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Also write TensorBoard's event files of the training into this directory.",
    ),
]


def backend_of(in_process: bool | None) -> Any:
    """The backend that a flag asks for; the placement chooses where it says nothing."""
    if in_process is None:
        return "auto"
    return "in-process" if in_process else "ray"


def train(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace directory that `fedray run` wrote.")
    ],
    scenario: Annotated[
        Path | None,
        scenario_argument(
            "A scenario, by file or name, whose tables data, training and privacy are taken; "
            "default: what the trace was simulated with.",
            "[SCENARIO]",
        ),
    ] = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="New directory for the model; default: one under runs/.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Go on with an interrupted training: its --out."
        ),
    ] = None,
    in_process: InProcessFlag = None,
    trainers: TrainersOption = None,
    address: AddressOption = None,
    checkpoint_seconds: CheckpointOption = 30.0,
    worker_timeout: WorkerTimeoutOption = 600.0,
    trust_code: TrustFlag = False,
    aggregator_gpus: AggregatorGpusOption = 0.0,
    tensorboard: TensorboardOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a model on a trace: another mechanism, task or seed, with the same participations.

    Two trainings on one trace are paired: they differ in what was set alone.
    """
    from fedray.audit.audit import audit_trace
    from fedray.base.errors import InputError
    from fedray.report.audits import guarantees_table
    from fedray.report.event_files import event_files
    from fedray.report.progress import both, run_progress
    from fedray.report.terminal import training_text
    from fedray.runs.learning import scenario_of
    from fedray.runs.learning import train as train_on
    from fedray.runtime.placement import Placement
    from fedray.scenario import Scenario
    from fedray.trace.imported import open_trace

    if resume is not None and out is not None:
        raise InputError("--resume goes on with a training where it was: leave out --out")
    placement = Placement(
        backend=backend_of(in_process),
        address=address,
        trainers=trainers,
        checkpoint_seconds=checkpoint_seconds,
        worker_timeout_seconds=worker_timeout,
        aggregator_gpus=aggregator_gpus,
    )
    opened = open_trace(trace)
    # A file that is named in the command is trusted; code that came with the trace is not.
    if scenario is not None:
        value = Scenario.from_toml(scenario, overrides or (), trust_code=True)
    else:
        value = scenario_of(opened).with_overrides(*(overrides or ()))
    given = [str(scenario)] if scenario is not None else []
    sets = [f"--set={each}" for each in overrides or ()]
    how = shlex.join(["fedray", "train", str(trace), *given, *sets, "--resume"])
    with (
        run_progress(is_shown=not quiet) as show,
        event_files(tensorboard) as write,
        # A training is resumed in its own directory, so that there is no other --out.
        resumable(resume or out, f"{value.name}-training", how, quiet) as (directory, say),
        contextlib.redirect_stdout(sys.stderr),  # Ray tells of dead workers there
    ):
        on_progress = both(say, both(show, write))
        trained = train_on(
            opened,
            value,
            placement,
            directory,
            on_progress,
            is_resumed=resume is not None,
            trust_code=trust_code,
        )
    privacy = value.privacy
    # The training may have another mechanism than the run, so that the audit is of this one.
    audit = audit_trace(
        opened,
        privacy.noise_multiplier,
        privacy.delta,
        privacy.mechanism,
        encoding=privacy.encoding,
    )
    if as_json:
        print_json({**trained.to_json(), "audit": audit.to_json()})
        return
    print_pieces([*training_text(f"Trained on {trace}", trained), guarantees_table(audit)])
    typer.echo(f"`fedray audit {trace}` says what these guarantees rest on.")
    typer.echo(f"model   {trained.path}")


def pretrain(
    scenario: Annotated[Path, scenario_argument("A scenario, by file or name: whose model it is.")],
    public: Annotated[
        Path,
        typer.Argument(
            metavar="PUBLIC", help="A TOML file with steps, learning_rate, ... and a table data."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="New safetensors file, for training.initial.file."),
    ],
    overrides: SetOption = None,
    trust_code: TrustFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a scenario's model on public data, without devices, clipping and noise.

    A training starts from the file that is written by training.initial.file.
    """
    from fedray.base.table import read_table_file
    from fedray.report.table import Table
    from fedray.report.trained_page import number_text
    from fedray.runs.pretraining import pretrain as pretrain_on
    from fedray.scenario import Scenario
    from fedray.scenario.pretraining import Pretraining

    # The scenario is read before the public data, because a mistake in it costs no time.
    value = Scenario.from_toml(scenario, overrides or (), trust_code=trust_code)
    table = read_table_file(Pretraining, public, "public data")
    with progress_line("pretraining", quiet) as on_status:
        found = pretrain_on(value, table, out, on_status, trust_code=trust_code)
    if as_json:
        print_json(found.to_json())
        return
    title = f"Pretrained on {found.examples:,} examples; held-out metrics on the public data"
    cells = {
        "step": lambda step: f"{step.number:,}",
        "train loss": lambda step: number_text(step.train_loss),
        **{
            name.replace("_", " "): _measure_cell(name)
            for name in found.steps[0].evaluation.metrics
        },
    }
    print_pieces([Table.of(title, found.steps, cells)])
    typer.echo(f"model   {out}")


def _measure_cell(name: str) -> Callable[[Any], str]:
    from fedray.report.trained_page import measured_text

    return lambda step: measured_text(step.evaluation.metrics[name])


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Two or more directories of `fedray train`, or traces with a trained run.",
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="What they were trained on, for epsilon; default: the trace in which one lies.",
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(metavar="D", help="Delta of every epsilon; default: that of the first run."),
    ] = None,
    page: PageOption = None,
    figures: FiguresOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare trained runs of one trace: settings, metrics, privacy, costs, paired differences.

    Runs that differ in training.seed alone are a group, with a mean over its
    seeds. Groups are compared by the differences of runs with the same seed.
    """
    from fedray.studies.compare import compare_runs

    result = compare_runs(runs, trace, delta)
    # Files are written before anything is printed, because the JSON names them.
    written = _write_shown(result, page, figures)
    if as_json:
        print_json({**result.to_json(), **written})
        return
    print_pieces(result.tables())
    # Without the trace nobody knows the participations that epsilon follows from.
    if not result.assumptions:
        typer.echo("Epsilon is not known without the trace; give it by --trace.")
    for what, path in written.items():
        typer.echo(f"{what:<8} {path}")


def evaluate(
    trained: Annotated[
        Path,
        typer.Argument(
            metavar="TRAINED",
            help="A directory of `fedray train`, or a trace with a trained run.",
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="What it was trained on; default: the trace in which it lies.",
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Devices that are drawn of the population, and of each group that took part "
            "equally often.",
        ),
    ] = 512,
    examples: Annotated[int, typer.Option(metavar="M", help="Most examples of each device.")] = 64,
    page: PageOption = None,
    figures: FiguresOption = None,
    trust_code: TrustFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a trained model on the population's devices: by how often they took part, and by
    time zone.

    Every device counts once. --page is the page of the trained run, with these
    figures.
    """
    from fedray.studies.on_devices import evaluate_on_devices

    with progress_line("evaluating", quiet):
        result = evaluate_on_devices(trained, trace, sample, examples, trust_code=trust_code)
    written = _write_shown(result, page, figures)
    if as_json:
        print_json({**result.to_json(), **written})
        return
    print_pieces(result.tables())
    for what, path in written.items():
        typer.echo(f"{what:<8} {path}")


def _write_shown(result: Any, page: Path | None, figures: Path | None) -> dict[str, str]:
    """Returns the paths of the page and the figures that were requested and written."""
    from fedray.report.files import write_figures
    from fedray.report.page import write_report

    written = {}
    if page is not None:
        written["page"] = str(write_report(result, page))
    if figures is not None:
        write_figures(result, figures)
        written["figures"] = str(figures.absolute())
    return written
