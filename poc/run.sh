#!/usr/bin/env bash
# A whole federation on this machine: real processes, real mTLS, one command; README.md says what it does.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="$here/../.venv/bin/python"
[[ -x "$python" ]] || python=python3
exec "$python" "$here/rehearsal.py" "$@"
