"""Keep the cache's old module name importable; the code is in gpt/base/cache.py."""

from gpt.base.cache import Cache, default_folder, key_of

__all__ = ["Cache", "default_folder", "key_of"]
