"""The queues themselves, over the AWS SDK (boto3), whose blocking calls run in threads."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from ...cancellation import translated
from ...errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, sentence
from ...store.answers import MissingRight
from ...worker.threads import Clockwork
from .location import SqsLocation
from .messages import Unreadable, group_of, pointed, pointer

RECEIVED_AT_ONCE = 10
"""Messages of one receive, send or delete: more SQS does not take."""
LONG_POLL = 20
"""Seconds for which a receive waits for a message: the longest there is, because each receive is paid for."""
_BATCH_BYTES = 256 * 1024
"""Bytes of a batch of several messages. A single one may be as large as its queue allows."""
_SAFE_LIMIT = 256 * 1024
"""Bytes of a message where the queue may not be asked for its limit."""
_KEEPS = 4 * 24 * 3600
"""Seconds for which a queue keeps a message unless it says otherwise."""
_CALLS_AT_ONCE = 8
_CREATED_WITH = {"MessageRetentionPeriod": str(14 * 24 * 3600), "ReceiveMessageWaitTimeSeconds": str(LONG_POLL)}
_REASON = "stepfast-reason"
_WHOSE = "stepfast-task"
"""An attribute of a task whose body is in S3: whose it is, so that a worker that may not read it can say so."""
_RIGHTS = {
    "AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken",
    "ExpiredTokenException", "UnrecognizedClientException", "InvalidSecurity", "MissingAuthenticationToken",
    "AuthFailure", "OptInRequired", "KMS.AccessDeniedException", "KmsAccessDenied", "InvalidAccessKeyId",
}  # fmt: skip
_MISSING = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NoSuchBucket"}
_REFUSED = {
    "InvalidMessageContents", "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong",
    "InvalidParameterValue", "MessageTooLong",
}  # fmt: skip


class Queue(NamedTuple):
    """A queue, and what it says of itself."""

    url: str
    fifo: bool
    limit: int
    """Bytes of a message."""
    keeps: int
    """Seconds for which it keeps a message."""
    dead: str | None
    """The URL of its dead-letter queue."""


class Message(NamedTuple):
    """A message that was received and is hidden from others."""

    id: str
    receipt: str
    body: str
    received: int
    """How often it has been received, now included."""
    sent_at: int
    now: int
    """The clock of SQS when it was received, in milliseconds, to the second."""
    attributes: Mapping[str, Any]
    group: str | None


class Outgoing(NamedTuple):
    """A message to be sent. ``nonce`` is the same for all tries to send it."""

    step_id: str
    body: str
    nonce: str
    whose: str | None = None


class Queues:
    """The queues of one prefix, as one side uses them."""

    def __init__(self, where: SqsLocation, clock: Clockwork, logger: logging.Logger, *, create: bool) -> None:
        self.where = where
        self.leaving = False
        """Whether what a receive still brings is given back at once."""
        self._create = create
        self._clock = clock
        self._logger = logger
        self._known: dict[str, Queue] = {}
        self._calls = clock.pool("sqs")
        self._polls = clock.pool("sqs-receive")
        self._at_once = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._client: Any = None
        self._s3: Any = None
        self._buried: set[str] = set()

    async def open(self) -> None:
        """Make the clients; the SDK looks for credentials when they are first needed."""
        with translated(self._meaning):
            self._client, self._s3 = await self._calls.submit(lambda: _clients(self.where))

    async def close(self) -> None:
        """Let the threads go. A receive that is under way ends by itself, and gives back what it brings."""
        self.leaving = True
        self._calls.close()
        self._polls.close()

    # -- which queue -----------------------------------------------------------------------------------------------

    async def tasks(self, group: str) -> Queue:
        """The queue of a group's tasks."""
        url = self.where.queue_urls.get(group)
        return await self._queue(url, lambda: self.where.tasks_name(group))

    async def results(self) -> Queue:
        """The queue of results."""
        return await self._queue(self.where.results_url, self.where.results_name)

    async def _queue(self, url: str | None, name: Callable[[], str]) -> Queue:
        called = url or name()
        if called not in self._known:
            url = url or await self._url_of(called)
            self._known[called] = await self._described(url)
        return self._known[called]

    async def _url_of(self, name: str) -> str:
        try:
            return str((await self._call("get_queue_url", QueueName=name))["QueueUrl"])
        except SchemaError:
            if not self._create:
                raise
        attributes = dict(_CREATED_WITH)
        if name.endswith(".fifo"):
            attributes |= {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
            attributes["FifoThroughputLimit"] = "perMessageGroupId"
        return str((await self._call("create_queue", QueueName=name, Attributes=attributes))["QueueUrl"])

    async def _described(self, url: str) -> Queue:
        fifo = url.endswith(".fifo")
        try:
            found = (await self._call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])).get(
                "Attributes", {}
            )
        except MissingRight:
            return Queue(url, fifo, _SAFE_LIMIT, _KEEPS, None)
        limit = int(found.get("MaximumMessageSize", _SAFE_LIMIT))
        keeps = int(found.get("MessageRetentionPeriod", _KEEPS))
        return Queue(url, fifo, limit, keeps, await self._dead_letters(found.get("RedrivePolicy")))

    async def _dead_letters(self, policy: str | None) -> str | None:
        """The target of a queue's redrive policy; else the queue ``<prefix>-dead``, if it is there or may be made."""
        try:
            if policy is None:
                return await self._url_of(self.where.dead_name())
            *_, account, name = str(json.loads(policy)["deadLetterTargetArn"]).split(":")
            found = await self._call("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account)
            return str(found["QueueUrl"])
        except (SchemaError, MissingRight, ValueError, KeyError):
            return None

    # -- messages --------------------------------------------------------------------------------------------------

    async def receive(self, queue: Queue, most: int, visibility: int) -> list[Message]:
        """Wait for messages, and hide them from others for so many seconds."""
        arguments = {
            "QueueUrl": queue.url,
            "MaxNumberOfMessages": min(most, RECEIVED_AT_ONCE),
            "WaitTimeSeconds": LONG_POLL,
            "VisibilityTimeout": visibility,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        with translated(self._meaning):
            found: list[Message] = await self._polls.submit(lambda: self._receive(arguments))
        if self.where.marker is None:
            return found
        others = [message for message in found if self.where.marker not in message.attributes]
        await self.hide(queue, {message.receipt: message.receipt for message in others}, 0)
        return [message for message in found if self.where.marker in message.attributes]

    def _receive(self, arguments: dict[str, Any]) -> list[Message]:
        """In a thread. The caller may have given up when it returns."""
        answer = self._client.receive_message(**arguments)
        messages = answer.get("Messages", [])
        if self.leaving and messages:
            entries = [
                {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                for n, message in enumerate(messages)
            ]
            self._client.change_message_visibility_batch(QueueUrl=arguments["QueueUrl"], Entries=entries)
            return []
        date = _milliseconds(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))
        return [_message(message, date) for message in messages]

    async def load(self, message: Message) -> str:
        """The body of a message, from S3 if it is there. Only of the bucket that this side was given."""
        where = pointed(message.body)
        if where is None:
            return message.body
        bucket, key = where
        if bucket != self.where.bucket:
            mine = f"this side was given {self.where.bucket!r}" if self.where.bucket else "this side has no bucket="
            raise Unreadable(f"its body is in the S3 bucket {bucket!r}, and {mine}")
        try:
            return str(await self._s3_call(lambda: self._s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()))
        except DatabaseRefused as error:
            raise Unreadable(f"its body cannot be read from S3 ({error})") from None

    async def forget_body(self, message_body: str) -> None:
        """Remove the body of a message that is over from S3. What this leaves, a rule of the bucket expires."""
        try:
            where = pointed(message_body)
            if where is not None and where[0] == self.where.bucket:
                await self._s3_call(lambda: self._s3.delete_object(Bucket=where[0], Key=where[1]))
        except (Unreadable, DatabaseUnavailable, DatabaseRefused, ConfigurationError, SchemaError) as error:
            self._logger.warning("the body of a message stays in S3: %s", error)

    def check_size(self, queue: Queue, messages: Iterable[Outgoing], what: str) -> None:
        """Refuse bodies that the queue does not take, before anything is sent."""
        if self.where.bucket is None:
            for message in messages:
                if (size := self._size(message)) > queue.limit:
                    raise DatabaseRefused(
                        f"{what} of step {message.step_id} has {size} bytes, and the queue {queue.url} takes at most "
                        f"{queue.limit}: make it smaller, or give both sides an S3 bucket (bucket=)"
                    )

    async def send(self, queue: Queue, messages: Sequence[Outgoing], sent: Callable[[Outgoing], None]) -> None:
        """Send messages; each that SQS has taken is told at once, because the next may fail."""
        small = [await self._offloaded(queue, message) for message in messages]
        batches = [self._send_batch(queue, batch, sent) for batch in _batches(small, self._size)]
        for error in await asyncio.gather(*batches, return_exceptions=True):
            if error is not None:
                raise error

    async def _offloaded(self, queue: Queue, message: Outgoing) -> Outgoing:
        bucket = self.where.bucket
        if bucket is None or self._size(message) <= queue.limit:
            return message
        key = f"{self.where.prefix}/{group_of(message.step_id)}/{message.nonce}"
        body = message.body.encode()
        await self._s3_call(lambda: self._s3.put_object(Bucket=bucket, Key=key, Body=body))
        return message._replace(body=pointer(bucket, key))

    async def _send_batch(self, queue: Queue, batch: Sequence[Outgoing], sent: Callable[[Outgoing], None]) -> None:
        entries = [{"Id": str(n)} | self._entry(queue, message) for n, message in enumerate(batch)]
        async with self._at_once:
            answer = await self._call("send_message_batch", QueueUrl=queue.url, Entries=entries)
        for entry in answer.get("Successful", []):
            sent(batch[int(entry["Id"])])
        failed = answer.get("Failed", [])
        if failed:
            said = "; ".join(sorted({str(entry.get("Message") or entry.get("Code")) for entry in failed}))[:300]
            if all(entry.get("SenderFault") for entry in failed):
                raise DatabaseRefused(f"SQS refuses {len(failed)} of {len(batch)} messages: {said}")
            raise DatabaseUnavailable(f"SQS did not take {len(failed)} of {len(batch)} messages: {said}")

    def _entry(self, queue: Queue, message: Outgoing) -> dict[str, Any]:
        entry: dict[str, Any] = {"MessageBody": message.body}
        if attributes := self._attributes(message):
            entry["MessageAttributes"] = attributes
        if queue.fifo:
            entry |= {"MessageGroupId": group_of(message.step_id), "MessageDeduplicationId": message.nonce}
        return entry

    def _attributes(self, message: Outgoing) -> dict[str, Any]:
        found = {} if self.where.marker is None else {self.where.marker: _string("1")}
        if message.whose is not None and pointed(message.body) is not None:
            found[_WHOSE] = _string(message.whose)
        return found

    def _size(self, message: Outgoing) -> int:
        extra = sum(len(name) + 6 + len(value["StringValue"]) for name, value in self._attributes(message).items())
        return len(message.body.encode()) + extra

    async def delete(self, queue: Queue, receipts: Sequence[str]) -> None:
        """End messages. One that is not there any more is no trouble."""
        for start in range(0, len(receipts), RECEIVED_AT_ONCE):
            some = receipts[start : start + RECEIVED_AT_ONCE]
            entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(some)]
            async with self._at_once:
                answer = await self._call("delete_message_batch", QueueUrl=queue.url, Entries=entries)
            if any(not entry.get("SenderFault") for entry in answer.get("Failed", [])):
                raise DatabaseUnavailable(f"SQS did not delete all messages of {queue.url}")

    async def hide(self, queue: Queue, receipts: Mapping[Any, str], seconds: int) -> set[Any]:
        """Hide messages for so many seconds from now; those, by their names here, that are not ours any more."""
        gone, names = set(), list(receipts)
        for start in range(0, len(names), RECEIVED_AT_ONCE):
            some = names[start : start + RECEIVED_AT_ONCE]
            entries = [
                {"Id": str(n), "ReceiptHandle": receipts[name], "VisibilityTimeout": seconds}
                for n, name in enumerate(some)
            ]
            async with self._at_once:
                answer = await self._call("change_message_visibility_batch", QueueUrl=queue.url, Entries=entries)
            gone |= {some[int(entry["Id"])] for entry in answer.get("Failed", []) if entry.get("SenderFault", True)}
        return gone

    async def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Move a message that no try can use to the dead-letter queue, with the reason. Where there is none it stays,
        and is out of the way for an hour."""
        if message.id not in self._buried:
            where = queue.dead or "no dead-letter queue"
            self._logger.error("message %s of %s: %s; moved to %s", message.id, queue.url, reason, where)
        if queue.dead is None:
            self._buried.add(message.id)
            await self.hide(queue, {message.id: message.receipt}, 3600)
            return
        attributes = {
            name: {key: value[key] for key in ("DataType", "StringValue", "BinaryValue") if key in value}
            for name, value in list(message.attributes.items())[:8]
        }
        attributes |= {_REASON: _string(reason[:1000]), "stepfast-queue": _string(queue.url)}
        entry: dict[str, Any] = {"MessageBody": message.body, "MessageAttributes": attributes}
        if queue.dead.endswith(".fifo"):
            entry |= {"MessageGroupId": message.group or "dead", "MessageDeduplicationId": message.id}
        await self._call("send_message", QueueUrl=queue.dead, **entry)
        await self.delete(queue, [message.receipt])

    # -- the SDK ---------------------------------------------------------------------------------------------------

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        with translated(self._meaning):
            return await self._calls.submit(lambda: getattr(self._client, name)(**arguments))

    async def _s3_call(self, function: Callable[[], Any]) -> Any:
        with translated(self._meaning):
            return await self._calls.submit(function)

    def _meaning(self, error: Exception) -> Exception:
        return meaning(error, self.where)


def whose(message: Message) -> str | None:
    """Whose task a message is whose body is in S3."""
    found = message.attributes.get(_WHOSE, {}).get("StringValue")
    return found if isinstance(found, str) else None


def meaning(error: Exception, where: SqsLocation) -> Exception:
    """What an error of the SDK means."""
    from botocore import exceptions as sdk

    if isinstance(error, sdk.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        operation = error.operation_name
        if code in _MISSING:
            return SchemaError(f"{operation}: {sentence(error)}: make the queue or bucket, or let it be made (create)")
        if code in _RIGHTS or status in (401, 403):
            return MissingRight(
                f"AWS does not allow {operation} ({sentence(error)}): see the policies in the documents"
            )
        if code in _REFUSED or code == "NoSuchKey":
            return DatabaseRefused(sentence(error))
        return DatabaseUnavailable(f"{operation} failed: {sentence(error)}")
    if isinstance(error, (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError)):
        return MissingRight(
            f"the AWS SDK finds no credentials ({sentence(error)}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
            "profile, or a role"
        )
    if isinstance(error, sdk.NoRegionError):
        return ConfigurationError("SQS needs a region: sqs://eu-central-1, SqsTransport(region=…), or AWS_REGION")
    if isinstance(error, (sdk.HTTPClientError, sdk.ConnectionError)):
        at = f" at {where.endpoint_url}" if where.endpoint_url else ""
        return DatabaseUnavailable(f"SQS cannot be reached{at}: {sentence(error)}")
    if isinstance(error, sdk.BotoCoreError):
        return ConfigurationError(f"the AWS SDK: {sentence(error)}")
    return error


def _clients(where: SqsLocation) -> tuple[Any, Any]:
    """In a thread: the SDK reads files."""
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"SQS needs the package {error.name!r}: pip install 'stepfast[sqs]'") from None
    session = boto3.Session(region_name=where.region)
    config = Config(
        connect_timeout=5,
        read_timeout=LONG_POLL + 10,
        retries={"mode": "standard", "max_attempts": 3},
        max_pool_connections=_CALLS_AT_ONCE + 2,
    )
    client = session.client("sqs", endpoint_url=where.endpoint_url, config=config)
    s3 = session.client("s3", endpoint_url=where.endpoint_url, config=config) if where.bucket else None
    return client, s3


def _batches(messages: Sequence[Outgoing], size: Callable[[Outgoing], int]) -> list[list[Outgoing]]:
    found: list[list[Outgoing]] = []
    room = 0
    for message in messages:
        needed = size(message)
        if not found or len(found[-1]) == RECEIVED_AT_ONCE or needed > room:
            found.append([])
            room = _BATCH_BYTES
        found[-1].append(message)
        room -= needed
    return found


def _message(found: Mapping[str, Any], date: int) -> Message:
    system = found.get("Attributes", {})
    sent_at = int(system.get("SentTimestamp", 0))
    return Message(
        found["MessageId"], found["ReceiptHandle"], found.get("Body", ""),
        int(system.get("ApproximateReceiveCount", 1)), sent_at, max(date, sent_at),
        found.get("MessageAttributes", {}), system.get("MessageGroupId"),
    )  # fmt: skip


def _milliseconds(date: str | None) -> int:
    """The time that SQS answered at."""
    try:
        return 0 if date is None else int(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return 0


def _string(text: str) -> dict[str, str]:
    """A message attribute. It takes the characters that a body takes."""
    return {"DataType": "String", "StringValue": "".join(c if c >= " " else " " for c in text) or " "}
