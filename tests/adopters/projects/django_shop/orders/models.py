from django.db import models


class Line(models.Model):
    """One line of an order, written by the shop."""

    order = models.CharField(max_length=20)
    number = models.IntegerField()


class Booked(models.Model):
    """One line of an order, written when its message was handled."""

    order = models.CharField(max_length=20)
    number = models.IntegerField()
