from django.core.management.base import BaseCommand

from orders.models import Account
from orders.tasks import credit


class Command(BaseCommand):
    """Opens the account of an order, and credits 10 to it."""

    def handle(self, *args, **options):
        Account.objects.create(order="A")
        credit.push("A", {"amount": 10})
