#!/usr/bin/env bash
# install.sh ENVIRONMENT REQUIREMENTS: makes a virtual environment that holds exactly the pins.
set -euo pipefail
environment=$1
requirements=$2
python=${PYTHON:-python3}
started=$SECONDS
if [ -t 2 ]; then echo "installing $environment ..." >&2; fi
if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --allow-existing --python "$python" "$environment"
    # Named outright: uv prefers UV_PYTHON of the caller to VIRTUAL_ENV.
    uv pip install --quiet --python "$environment/bin/python" --require-hashes -r "$requirements"
else
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        --require-hashes -r "$requirements"
fi
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pwd >"$site/ledger-gateway.pth"   # the packages are run from the tree
touch "$environment/.ready"
echo "installed $environment in $((SECONDS - started)) s" >&2
