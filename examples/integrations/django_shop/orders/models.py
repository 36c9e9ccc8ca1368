"""Orders of the shop."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    cents = models.IntegerField()
    state = models.CharField(max_length=20, default="placed")
    task = models.CharField(max_length=36, default="")
    receipts = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.item} for {self.cents} cents"
