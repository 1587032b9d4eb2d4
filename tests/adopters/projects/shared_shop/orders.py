from celery import shared_task


@shared_task(bind=True, ignore_result=True)
def ship(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", f"order {payload}")
