import os

SECRET_KEY = "of a test"
INSTALLED_APPS = ["orders", "accounts"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"], "OPTIONS": {"timeout": 20}}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

CELERY_BROKER_URL = os.environ["REDIS_URL"]
CELERY_BRIDGE_STREAM = "orders"
CELERY_BRIDGE_LEASE = 3
