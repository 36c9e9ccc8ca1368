"""Steps that are served elsewhere: transports that carry them, and a worker that serves them.

The contract, which other languages speak too, is in ``contract/``.
"""

from ..worker.remote_dispatcher import Transport
from .protocol import FatalError, RemoteTask, Result, Task
from .sql_transport import SqlTransport
from .sqs.transport import SqsTransport
from .worker import RemoteWorker

__all__ = ["FatalError", "RemoteTask", "RemoteWorker", "Result", "SqlTransport", "SqsTransport", "Task", "Transport"]
