"""The table `latency`: how long a selected device takes."""

from typing import Annotated

from pydantic import Field

from fedray.base.table import Spread, Table


class Latency(Table):
    """Times that a selected device takes; see clients/latency.py."""

    setup_seconds: Annotated[float, Field(ge=0, le=1e6)] = 20.0
    """Fixed time before training starts, seconds."""
    train_seconds: Annotated[float, Field(gt=0, le=1e6)] = 90.0
    """Median training time at the median number of examples, seconds."""
    speed_between: Spread = 0.6
    """Log-standard deviation of the training time between devices."""
    speed_within: Spread = 0.3
    """Log-standard deviation of the training time between the rounds of one device."""
    model_megabytes: Annotated[float, Field(ge=0, le=1e6)] = 10.0
    """Size of the model that is downloaded and of the update that is uploaded, megabytes each."""
    downlink_megabytes_per_second: Annotated[float, Field(ge=1e-3, le=1e6)] = 4.3
    """Median download rate, megabytes per second."""
    downlink_sigma: Spread = 0.47
    """Log-standard deviation of the download rate between devices."""
    uplink_megabytes_per_second: Annotated[float, Field(ge=1e-3, le=1e6)] = 3.3
    """Median upload rate, megabytes per second."""
    uplink_sigma: Spread = 0.68
    """Log-standard deviation of the upload rate between devices."""
    secagg_seconds: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Fixed time for secure aggregation (keys, masks, waiting for others), seconds. Default:
    none."""
    failure_probability: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Probability that a selected device fails for a reason of its own (crash, network)."""
    slowdown: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Stress: factor on the time from a device's selection to its report; 1.5 stands for secure
        aggregation at 0.66x speed."""

    @property
    def fixed_seconds(self) -> float:
        """Time that every device needs, before the slowdown, seconds."""
        return self.setup_seconds + (self.secagg_seconds or 0.0)
