"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.CharField(max_length=100)),
                ("cents", models.IntegerField()),
                ("state", models.CharField(default="placed", max_length=20)),
                ("task", models.CharField(default="", max_length=36)),
                ("receipts", models.IntegerField(default=0)),
            ],
        ),
    ]
