"""A server of the interface of Google Cloud Storage for tests, in a process of its own on loopback:
gcp-storage-emulator, which keeps objects in its memory."""

from __future__ import annotations

from pathlib import Path

from tests.object_server import ObjectServer, require_packages
from torch_edl.wire.endpoint import free_port


def require_gcs() -> None:
    """Skips the test where the packages are missing; `make install-all` installs them."""
    require_packages(("gcp_storage_emulator", "gcsfs"))


class GcsServer(ObjectServer):
    """The process of a server.

    Attributes:
        environment: variables with which gcsfs finds it.
    """

    def __init__(self, folder: Path) -> None:
        require_gcs()
        port = free_port()
        words = ["start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
        super().__init__(["gcp_storage_emulator", *words], port, folder / "gcs.log")
        self.environment = {
            "STORAGE_EMULATOR_HOST": self.url,
            # Otherwise gcsfs looks for credentials to ask of which type a bucket is.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
