import json

from django.core.management.base import BaseCommand

from orders.models import Booked


class Command(BaseCommand):
    """Prints the booked lines of each order, in the order of booking."""

    def handle(self, *args, **options):
        for order in ("A", "B"):
            numbers = Booked.objects.filter(order=order).order_by("pk").values_list("number", flat=True)
            self.stdout.write(json.dumps(list(numbers)))
