from celery import shared_task

from orders.models import Booked, Line


@shared_task(bind=True, ignore_result=True)
def book(self, ticket_id, payload):
    # Only committed rows are found here.
    line = Line.objects.get(pk=payload["line"])
    Booked.objects.create(order=line.order, number=line.number)
    self.ticket.effects.rpush(f"log:{ticket_id}", line.number)
