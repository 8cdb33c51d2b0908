"""The keys of the figures of mechanisms."""

from functools import cache

from fedray.documents.keys import JsonKey, Keys, keys_of, meaning_of, text
from fedray.mechanisms.figures import Figures
from fedray.mechanisms.loss import Loss
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Sensitivity


@cache
def figures_keys() -> Keys:
    """Of the figures of a mechanism at a setting."""
    hypothetical = {
        "epsilon": JsonKey("number or null", meaning_of(Figures, "amplified_epsilon")),
        "renyi_epsilon": JsonKey("number or null", meaning_of(Figures, "amplified_renyi_epsilon")),
        "is_exact": JsonKey("boolean", "False: both epsilons are upper bounds."),
        "probability": JsonKey("number", "Probability with which a device is drawn in its turn."),
        "partitions": JsonKey("integer", "Parts of the population that take turns."),
        "compositions": JsonKey("integer", "How often each part has its turn."),
        "assumption": text("What is supposed, in words; no run of fedray does so by itself."),
    }
    losses = ("max_error", "rms_error", "max_loss", "rms_loss")
    return keys_of(
        Figures,
        "kind paper rounds min_sep max_participations sensitivity sensitivity_is_exact "
        "sensitivity_theorem sensitivity_lower_bound worst_pattern max_error rms_error max_loss "
        "rms_loss noise_multiplier mu rho epsilon delta hypothetical parameters",
        kind=text("Kind of the mechanism."),
        paper=text("Where the mechanism comes from."),
        **keys_of(MinSep),
        sensitivity=JsonKey("number", meaning_of(Loss, "sensitivity")),
        sensitivity_is_exact=JsonKey("boolean", meaning_of(Sensitivity, "is_exact")),
        sensitivity_theorem=text(meaning_of(Sensitivity, "theorem")),
        sensitivity_lower_bound=JsonKey("number", meaning_of(Sensitivity, "lower_bound")),
        worst_pattern=JsonKey(
            "list of integers", "Rounds of a device that attain the lower bound."
        ),
        **keys_of(Loss, " ".join(losses)),
        hypothetical=JsonKey(
            "object", "Figures under Poisson sampling; only with `--sampling`.", hypothetical
        ),
        parameters=JsonKey("object", "The mechanism's own parameters, as in its file."),
    )


@cache
def compared_keys() -> Keys:
    """Of several mechanisms at one setting."""
    meaning = "The figures of each, by its file or kind as it was typed."
    return {"mechanisms": JsonKey("object by mechanism", meaning, figures_keys())}


def optimize_keys() -> Keys:
    """What `fedray optimize` adds to those of figures."""
    return {
        "targets": JsonKey(
            "list of objects",
            "The same figures for each of the weighted outcomes, the weightiest first; only with "
            "`--targets` of several outcomes.",
            figures_keys(),
        ),
        "seconds": JsonKey("number", "Wall-clock time of the search in seconds."),
        "interrupted": JsonKey(
            "boolean", "Whether Ctrl-C ended the search before the optimum was found."
        ),
    }
