"""What a store does in several steps, without the database: flows that ask, and are answered.

A flow is a generator. It yields requests (``requests.py``) and is sent what they bring; the decisions in between are
those of ``model/``. A store drives it over its own connection, in a transaction, with a few lines of its own. So the
order of things, and what follows from what, is written once for all databases.
"""
