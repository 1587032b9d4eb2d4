import os
import signal

from celery import shared_task
from django.db import transaction
from django.db.models import F

from accounts.models import Account, Handled


@shared_task(bind=True, ignore_result=True)
def credit(self, ticket_id, payload):
    with transaction.atomic():
        _, first = Handled.objects.get_or_create(message_id=self.ticket.message_id)
        if first:
            Account.objects.filter(pk=ticket_id).update(balance=F("balance") + payload["amount"])
    if self.ticket.attempt == 1:
        # The process dies between the commit and the success.
        os.kill(os.getpid(), signal.SIGKILL)
