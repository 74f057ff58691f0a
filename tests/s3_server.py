"""A real S3-compatible server for tests: moto's, in a process of its own on loopback."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

from tests.object_server import ObjectServer, require_packages
from torch_edl.wire.endpoint import free_port


def require_s3() -> None:
    """Skips the test where the packages are missing; `make install-all` installs them."""
    require_packages(("moto", "flask", "s3fs"))


class S3Server(ObjectServer):
    """The process of a server that keeps objects in its memory.

    Attributes:
        environment: variables with which clients, such as s3fs, find it and sign their requests.
    """

    def __init__(self, folder: Path) -> None:
        require_s3()
        self.port = free_port()
        words = ["moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(words, self.port, folder / "s3.log")
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "a-key-of-tests",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def require_credentials(self, required: bool) -> None:
        """Whether the keys of a request are looked at from now on."""
        request = urllib.request.Request(
            f"{self.url}/moto-api/reset-auth",
            data=b"0" if required else b"inf",
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()

    def make_user(self) -> dict[str, str]:
        """Another user, who may do everything in the store: the variables of its keys."""
        import boto3

        iam = boto3.client("iam", endpoint_url=self.url)
        iam.create_user(UserName="other")
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="other", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="other")["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def pause(self) -> None:
        """SIGSTOP: it answers nobody."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it answers what waited."""
        self._process.send_signal(signal.SIGCONT)
