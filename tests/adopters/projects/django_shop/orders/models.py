from django.db import models


class Line(models.Model):
    """One line of an order, written by the shop."""

    order = models.CharField(max_length=20)
    number = models.IntegerField()


class Account(models.Model):
    """What was credited to an order."""

    order = models.CharField(max_length=20, primary_key=True)
    balance = models.IntegerField(default=0)


class Handled(models.Model):
    """A message whose changes are committed."""

    message_id = models.CharField(max_length=100, primary_key=True)


class Booked(models.Model):
    """One line of an order, written when its message was handled."""

    order = models.CharField(max_length=20)
    number = models.IntegerField()
