#!/bin/sh
# Build the engine's environment (.venv-engine) and the small model (models/smollm2-135m) under the current folder, the repository's root.
# Needs Python 3.11 or newer and pip's index; about 3 GB and a few minutes, once. Runs again at once when nothing changed.
# PYTHON names the interpreter. pip's own settings (pip.conf, PIP_EXTRA_INDEX_URL) choose between a CPU and a CUDA build of torch.
set -eu

here=$(dirname "$0")
environment=.venv-engine
model=models/smollm2-135m
python=${PYTHON:-python3}
stamp=$environment/.legato-stamp

say() { printf 'engine: %s\n' "$*"; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "$python is older than Python 3.11"; exit 1; }

wanted=$(cat "$here"/requirements*.txt "$here"/legato_sglang/*.py "$here"/legato_sglang/pyproject.toml | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$stamp"
    [ -x "$environment/bin/python" ] || { say "creating $environment"; "$python" -m venv "$environment"; }
    pip() { "$environment/bin/python" -m pip --disable-pip-version-check "$@"; }
    say "installing torch and the engine's packages (this is the long part)"
    pip install --quiet --progress-bar off $(grep '^torch==' "$here/requirements.txt")  # first and alone: the others accept what is there
    pip install --quiet --progress-bar off -r "$here/requirements.txt"
    say "installing SGLang"
    pip install --quiet --progress-bar off --no-deps -r "$here/requirements-nodeps.txt"
    say "installing Legato's plug-ins"
    copy=$(mktemp -d)  # pip builds in the source folder: keep the working tree clean
    cp -R "$here/legato_sglang" "$copy/"
    pip install --quiet --no-deps --no-build-isolation --force-reinstall "$copy/legato_sglang"
    rm -r "$copy"
    printf '%s' "$wanted" > "$stamp"
fi
if [ ! -f "$model/config.json" ]; then
    say "building $model"
    mkdir -p "$(dirname "$model")"
    HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$environment/bin/python" "$here/build_model.py" "$model"
fi
say "ready: $environment, $model"
