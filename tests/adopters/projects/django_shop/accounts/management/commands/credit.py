from django.core.management.base import BaseCommand

from accounts.models import Account
from accounts.tasks import credit


class Command(BaseCommand):
    """Opens the account of a customer, and credits 10 to it."""

    def handle(self, *args, **options):
        Account.objects.create(customer="A")
        credit.push("A", {"amount": 10})
