"""``python3 -m bub_sdk MODULE[:NAME]`` serves a plugin that does not call ``serve()``."""

import sys

from .serve import serve

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m bub_sdk MODULE[:NAME]")
    serve(sys.argv[1])
