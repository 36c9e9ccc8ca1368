"""Remote steps over MariaDB and MySQL.

Written for MySQL 8, which has no RETURNING. The tests run on MariaDB.
"""

from .database import MysqlDatabase

__all__ = ["MysqlDatabase"]
