"""`[worker.notices]`: who may tell that this machine will be gone. Nobody, unless it is named."""

from typing import Annotated

import msgspec
from msgspec import Meta

Url = Annotated[str, Meta(pattern=r"^(https?://[^/\s?#@]+/?)?$", max_length=200)]


class NoticesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses are empty where nothing is to be asked. The usual ones: http://169.254.169.254 on EC2 and Azure,
    http://metadata.google.internal on GCP."""

    aws_url: Url = ""
    aws_rebalance: bool = False  # a recommendation to leave counts as a notice, too: earlier, and often for nothing
    gcp_url: Url = ""
    gcp_maintenance_s: Annotated[float, Meta(ge=0, le=7_200)] = 60.0  # from a maintenance notice to the stop; 3600 on machines with GPUs
    azure_url: Url = ""
    azure_resource: Annotated[str, Meta(max_length=200)] = ""  # this machine's name among an event's Resources, e.g. "pool_0"
    file: str = ""  # a path; see file.py
    file_grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0  # for a file that names no time
    poll_ms: Annotated[int, Meta(ge=50, le=60_000)] = 1_000
    timeout_ms: Annotated[int, Meta(ge=50, le=60_000)] = 5_000  # for one answer
    retry_max_ms: Annotated[int, Meta(ge=50, le=600_000)] = 10_000  # between questions to who does not answer; they grow up to it
    ahead_s: Annotated[float, Meta(ge=0, le=86_400)] = 120.0  # a loss that is further away is told when it is this near

    def __post_init__(self) -> None:
        if self.azure_url and not self.azure_resource:
            raise ValueError("azure_url needs azure_resource: the name of this machine in Azure, as its events list it")
