from django.core.management.base import BaseCommand

from accounts.models import Account


class Command(BaseCommand):
    """Prints the balance of the account."""

    def handle(self, *args, **options):
        self.stdout.write(str(Account.objects.get(pk="A").balance))
