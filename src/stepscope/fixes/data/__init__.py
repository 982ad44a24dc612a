"""Fixes for loading: workers, pinning, prefetch, caching, batch size, processors."""
