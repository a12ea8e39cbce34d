"""The cache under the name that it had here: gpt/cache.py."""

from gpt.cache import Cache, default_folder, key_of

__all__ = ["Cache", "default_folder", "key_of"]
