from django.db import models


class Account(models.Model):
    """What was credited to a customer."""

    customer = models.CharField(max_length=20, primary_key=True)
    balance = models.IntegerField(default=0)


class Handled(models.Model):
    """A message whose changes are committed."""

    message_id = models.CharField(max_length=100, primary_key=True)
