"""Re-export gpt.base.cache under its old name."""

from gpt.base.cache import Cache, default_folder, key_of

__all__ = ["Cache", "default_folder", "key_of"]
