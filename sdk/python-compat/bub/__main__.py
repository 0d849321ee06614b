"""``python -m bub serve NAME`` serves one plugin. ``python -m bub list`` and ``inspect`` describe what is installed."""

from bub._serve.main import main

main()
