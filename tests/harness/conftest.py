"""Lets the tests of this folder import the scripted bench that they share with its subprocess."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
