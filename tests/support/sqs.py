"""An SQS and an S3 on loopback: moto's server, a process of its own, which keeps everything in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from typing import Any, Self

from tests.support.postgres import HOST, _free_port

START_TIMEOUT = 60.0
REGION = "eu-central-1"


class PrivateSqs:
    """A server of this test process's own."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.endpoint = f"http://{HOST}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_TIMEOUT
        while True:
            try:
                urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5).read()
                return self
            except OSError:
                assert time.monotonic() < end and self._process.poll() is None, "moto's server did not start"
                time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Account:
    """The queues of one test, seen by somebody else: everything is called by the prefix, which is the test's own."""

    def __init__(self, endpoint: str, prefix: str) -> None:
        import boto3

        self.endpoint = endpoint
        self.prefix = prefix
        self.sqs: Any = boto3.client("sqs", endpoint_url=endpoint, region_name=REGION)
        self.s3: Any = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)

    def url(self, name: str, **attributes: str) -> str:
        """The URL of a queue, which is made if it is missing."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        return str(self.sqs.create_queue(QueueName=f"{self.prefix}-{name}", Attributes=attributes)["QueueUrl"])

    def put(self, name: str, body: Any, **more: Any) -> None:
        """Send a message: text as it is, everything else as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)
        self.sqs.send_message(QueueUrl=self.url(name), MessageBody=text, **more)

    def task(self, step_id: str, input: Any = None, name: str = "echo", attempt: int = 1) -> dict[str, Any]:
        """The body of a task, as engines of others write it."""
        run_id, _, seq = step_id.rpartition(":")
        return {
            "runId": run_id, "seq": int(seq), "name": name, "stepId": step_id, "group": "echo", "input": input,
            "attempt": attempt,
        }  # fmt: skip

    def take(self, name: str, most: int = 10) -> list[dict[str, Any]]:
        """Receive messages, and delete them."""
        url = self.url(name)
        found = self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=0,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        for message in found:
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return list(found)

    def count(self, name: str) -> int:
        """How many messages there are, hidden ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=names)["Attributes"]
        return sum(int(found[one]) for one in names)

    def bucket(self) -> str:
        """A bucket of the test's own."""
        configuration = {"LocationConstraint": REGION}
        self.s3.create_bucket(Bucket=f"{self.prefix}-bodies", CreateBucketConfiguration=configuration)
        return f"{self.prefix}-bodies"

    def objects(self) -> list[str]:
        """What is in it."""
        found = self.s3.list_objects_v2(Bucket=f"{self.prefix}-bodies").get("Contents", [])
        return [each["Key"] for each in found]
