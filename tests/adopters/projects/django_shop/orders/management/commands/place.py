from django.core.management.base import BaseCommand
from django.db import transaction

from orders.models import Line
from orders.tasks import book


class Command(BaseCommand):
    """Writes ten lines of two orders, each in a transaction, and one more whose transaction fails."""

    def handle(self, *args, **options):
        for number in range(10):
            for order in ("A", "B"):
                with transaction.atomic():
                    self.write(order, number)
        try:
            with transaction.atomic():
                self.write("A", 99)
                raise KeyError("rolled back")
        except KeyError:
            pass

    def write(self, order, number):
        line = Line.objects.create(order=order, number=number)
        transaction.on_commit(lambda: book.push(order, {"line": line.pk}))
