"""The settings of the shop."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "of an example")
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_shop.shop"
INSTALLED_APPS = ["examples.django_shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.db")}}
USE_TZ = True
