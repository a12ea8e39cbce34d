"""The cache under the name that it had here: gpt/base/cache.py."""

from gpt.base.cache import Cache, default_folder, key_of

__all__ = ["Cache", "default_folder", "key_of"]
