"""Django: its tasks, worker, admin and console, with the tests of Django's own tasks."""
