"""All figures of a mechanism at one setting: loss, sensitivity, privacy. What `fedray optimize` and `fedray mechanism` print."""

from dataclasses import dataclass
from typing import Any

from mechanisms.accounting.gdp import gaussian_epsilon, gaussian_mu
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.loss import Loss, loss
from mechanisms.participation import MinSep
from mechanisms.strategy import Strategy
from mechanisms.triangular import MatrixFile


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one strategy under one schema at one noise multiplier. `seconds`: what finding the strategy took."""

    strategy: Strategy
    schema: MinSep
    loss: Loss
    noise_multiplier: float
    delta: float
    mu: float
    rho: float
    epsilon: float
    seconds: float

    def parameters(self) -> dict[str, Any]:
        """The strategy's own, as in its JSON; of a matrix its SHA-256, size and bands, wherever its file is."""
        own = {key: value for key, value in self.strategy.model_dump(mode="json").items() if key not in ("kind", "file")}
        if isinstance(self.strategy, MatrixFile):
            own |= {"rounds": self.strategy.most_rounds, "bands": self.strategy.bands}
        return own

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        sensitivity = self.loss.sensitivity
        return {
            "kind": self.strategy.kind,
            "rounds": self.schema.rounds,
            "min_sep": self.schema.min_sep,
            "max_participations": self.schema.max_participations,
            "sensitivity": sensitivity.value,
            "sensitivity_is_exact": sensitivity.is_exact,
            "sensitivity_theorem": sensitivity.theorem,
            "sensitivity_lower_bound": sensitivity.lower_bound,
            "worst_pattern": list(sensitivity.worst_pattern),
            "max_error": self.loss.max_error,
            "rms_error": self.loss.rms_error,
            "max_loss": self.loss.max_loss,
            "rms_loss": self.loss.rms_loss,
            "noise_multiplier": self.noise_multiplier,
            "mu": self.mu,
            "rho": self.rho,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seconds": self.seconds,
            "parameters": self.parameters(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What is printed: (what, value)."""
        sensitivity = self.loss.sensitivity
        claim = "exact" if sensitivity.is_exact else f"upper bound; at least {sensitivity.lower_bound:.6f}"
        return [
            ("kind", f"{self.strategy.kind} ({self.strategy.paper})"),
            ("rounds n, min-sep b, max participations k", ", ".join(f"{each:,}" for each in self._schema())),
            ("sensitivity", f"{sensitivity.value:.6f} ({claim})"),
            ("by", sensitivity.theorem),
            ("a worst pattern of rounds", _shortened(sensitivity.worst_pattern)),
            ("error of prefix sums, max / rms", f"{self.loss.max_error:.6f} / {self.loss.rms_error:.6f}"),
            ("MaxLoss / RmsLoss", f"{self.loss.max_loss:.6f} / {self.loss.rms_loss:.6f}"),
            (f"mu, rho at noise multiplier {self.noise_multiplier:g}", f"{self.mu:.6f}, {self.rho:.6f}"),
            (f"epsilon at delta {self.delta:g}", f"{self.epsilon:.4f}"),
            *((name, _shortened(value)) for name, value in self.parameters().items()),
        ]

    def _schema(self) -> tuple[int, int, int]:
        return self.schema.rounds, self.schema.min_sep, self.schema.max_participations


def mechanism_figures(strategy: Strategy, schema: MinSep, noise_multiplier: float, delta: float, seconds: float) -> Figures:
    """Computes them all. Raises ValueError for impossible settings."""
    found = loss(strategy, schema)
    s = found.sensitivity.value
    return Figures(
        strategy,
        schema,
        found,
        noise_multiplier,
        delta,
        gaussian_mu(s, noise_multiplier),
        gaussian_rho(s, noise_multiplier),
        gaussian_epsilon(s, noise_multiplier, delta),
        seconds,
    )


def _shortened(value: Any) -> str:
    if isinstance(value, list | tuple):
        shown = [str(each) for each in value[:8]]
        return ", ".join(shown) + (f", ... ({len(value)})" if len(value) > 8 else "") if value else "none"
    return str(value)
