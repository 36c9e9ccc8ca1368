"""Remote steps over Amazon SQS: queues of tasks, one for each group, and one queue of results."""

from .location import SqsLocation, parse_sqs_url
from .task_queue import TaskQueue
from .transport import SqsTransport

__all__ = ["SqsLocation", "SqsTransport", "TaskQueue", "parse_sqs_url"]
