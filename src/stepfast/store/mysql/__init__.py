"""The store on MariaDB 10.6 or later and MySQL 8; its connections, transactions and errors, which the transport of
remote steps shares.
"""
