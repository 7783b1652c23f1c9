"""Makes the clock's scripted device importable, and gives it kernels of known cost."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "clock"))
sys.path.insert(0, str(Path(__file__).parent))
