"""Where a message goes next: states, policies, keys and the Lua transitions. Knows no Celery."""
