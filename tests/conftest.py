"""Settings of every test: nothing of the user's machine is read or written, and Triton interprets in this process.

Tests that compile, or start launches, do so in processes of their own.
"""

import os
import tempfile
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="harness-test-home-"))
os.environ |= {
    "HOME": str(HOME),
    "TRITON_CACHE_DIR": str(HOME / "triton"),
    "TRITON_INTERPRET": "1",
    "RAY_AUTH_MODE": "disabled",
    "GIT_CONFIG_GLOBAL": str(HOME / "gitconfig"),
    "GIT_CONFIG_NOSYSTEM": "1",
}
for name in ("GITHUB_EVENT_PATH", "GITHUB_BASE_REF", "GITHUB_SHA"):
    os.environ.pop(name, None)
(HOME / "gitconfig").write_text("[user]\n\tname = Tester\n\temail = tester@example.org\n[init]\n\tdefaultBranch = main\n")
