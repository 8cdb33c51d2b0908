"""Keys of the documents of reproductions."""

from fedray.documents.keys import JsonKey, Keys, keys_of, meaning_of, text
from fedray.documents.trainings import interval_keys
from fedray.mechanisms.participation import MinSep
from fedray.scenarios.gboard import Compared, ReproducedRun
from fedray.scenarios.gboard_predict import PaceScore, Prediction, PredictionStudy, Score
from fedray.scenarios.gboard_privacy import PublishedPrivacy
from fedray.scenarios.gboard_sensitivity import Moved
from fedray.scenarios.learning import Comparison, LearningCurves, MetricResult, TrainedMechanism
from fedray.wire.messages import Metric


def reproduction_keys() -> Keys:
    """Keys of `fedray reproduce gboard`."""
    figure = keys_of(Compared, "observed published relative_difference")
    figures = {
        name: JsonKey("object", "", figure)
        for name in ("min_sep", "max_participations", "rho", "epsilon")
    }
    run = keys_of(ReproducedRun, "", **figures)
    return {"runs": JsonKey("list of objects", "The published runs, simulated.", run)}


def published_privacy_keys() -> Keys:
    """Keys of `fedray reproduce gboard-privacy`."""
    row = {**keys_of(PublishedPrivacy), **keys_of(PublishedPrivacy, "agrees")}
    return {
        "note": text("The conventions of the published figures."),
        "rows": JsonKey("list of objects", "The published rows.", row),
    }


def prediction_keys() -> Keys:
    """Keys of `fedray reproduce gboard-predict`."""
    return keys_of(
        PredictionStudy,
        predictions=JsonKey("list of objects", "", keys_of(Prediction)),
        scores=JsonKey("list of objects", "", keys_of(Score)),
        pace=JsonKey("list of objects", "", keys_of(PaceScore)),
    )


def variation_keys() -> Keys:
    """Keys of `fedray reproduce gboard-sensitivity`."""
    return {
        "scale": JsonKey("number", meaning_of(PredictionStudy, "scale")),
        "settings": JsonKey(
            "list of objects",
            "Of every row its own scenario first, then what one other setting makes of it.",
            keys_of(Moved),
        ),
    }


def learning_keys() -> Keys:
    """Keys of `fedray reproduce learning`."""
    values = JsonKey("object", "The final value by seed; null where it is not finite.")
    comparison = keys_of(
        Comparison,
        "first second gain verdict",
        gain=JsonKey("object", "", interval_keys()),
    )
    metric = {
        **keys_of(Metric),
        "mechanisms": JsonKey(
            "object by mechanism",
            "The final values of each mechanism, and their mean over the seeds.",
            {"values": values, **interval_keys()},
        ),
        **keys_of(
            MetricResult,
            "evaluation_error order guesses",
            evaluation_error=JsonKey("number or null", ""),
            order=JsonKey("list of objects", "", comparison),
            guesses=JsonKey("list of objects", "", comparison),
        ),
    }
    study = {
        **keys_of(LearningCurves, "scenario trace_digest"),
        **keys_of(MinSep),
        **keys_of(
            LearningCurves,
            "rho epsilon delta seeds mechanisms metrics",
            mechanisms=JsonKey("list of objects", "", keys_of(TrainedMechanism)),
            metrics=JsonKey("list of objects", "", metric),
        ),
    }
    return {"studies": JsonKey("list of objects", "A study per scenario.", study)}
