from celery import shared_task


@shared_task(bind=True, ignore_result=True)
def reserve(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", f"stock {payload}")
