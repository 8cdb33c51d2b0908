"""fedray: simulate private cross-device federated learning on Ray, and audit what really happened.

    import fedray

    trace = fedray.run_scenario(fedray.Scenario.from_toml("scenarios/quickstart.toml"))
    print(fedray.audit_trace(trace))

Names are loaded when first used, so that importing fedray loads neither Ray nor torch nor jax. They
are listed in `fedray/__init__.pyi`, which type checkers read too.

Everything that these functions take or return is here too: scenarios are built from their tables
(`Scenario(population=Population(devices=1000), rounds=Rounds(count=20, report_goal=50))`), noise
mechanisms are strategies such as `BLT` and `Tree`. Paths may be strings. Bad input, arguments of
wrong types included, raises a `FedrayError`.
"""

from importlib import import_module
from typing import Any

from fedray.base.extras import missing_extra
from fedray.base.facade import homes

__version__ = "0.1.0"

_HOMES = homes()

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'fedray' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    # It imports `inspect`, which a start of the command does without.
    from fedray.base.validated import validated

    try:
        return validated(getattr(import_module(_HOMES[name]), name))
    except ModuleNotFoundError as error:
        if (lacks := missing_extra(error)) is not None:
            raise lacks from None
        raise


def __dir__() -> list[str]:
    return __all__
