"""``python -m pagedcache`` is the ``pagedcache`` command."""

import sys

from pagedcache.cli import main

sys.exit(main())
