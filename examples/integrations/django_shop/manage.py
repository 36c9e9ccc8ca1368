"""A shop whose orders are charged by tasks. To try it, with `pip install 'stepfast[django,console]'`:

python manage.py migrate
python manage.py runserver
python manage.py stepfast_worker         in another terminal
curl -d item=book -d cents=1200 http://127.0.0.1:8000/orders/
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
