from flower_apps import apps

__all__ = ["apps"]
