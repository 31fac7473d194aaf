"""Do the engines' own argument parsers take the commands of the shipped rigs? The parsers run; no engine is launched.

    python -m scripts.engine_parsers PYTHON FOLDER vllm-0.33.0-*.whl sglang-0.5.23-*.whl

PYTHON is the interpreter of an environment with a CPU vLLM (`make engines`): its packages are enough to import the sources of
another vLLM or of SGLang up to their parsers, without a GPU. The sources of each wheel are unpacked once below FOLDER, without
compiled libraries. Exit code 1 for a refused command, and for sources that cannot be imported: the line says why, and
`engine_flags.py`, which only reads the sources, is what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from scripts.engine_flags import commands

CHILD = Path(__file__).with_name("parse_commands.py")
LARGEST = 4 << 20  # bytes of a source or data file; what is larger is a library or weights


def main(words: list[str]) -> int:
    if len(words) < 3:
        print(__doc__)
        return 2
    interpreter, folder, wheels = words[0], Path(words[1]), [Path(word) for word in words[2:]]
    return max(checked(interpreter, sources(wheel, folder), wheel) for wheel in wheels)


def sources(wheel: Path, folder: Path) -> Path:
    """The folder with this wheel's sources, unpacked the first time. A mark tells that all of them are there."""
    place = folder / "-".join(wheel.name.split("-")[:2])
    if not (place / ".whole").exists():
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                if item.file_size <= LARGEST and not item.filename.endswith((".so", ".dist-info/RECORD")):
                    archive.extract(item, place)
        (place / ".whole").touch()
    return place


def checked(interpreter: str, place: Path, wheel: Path) -> int:
    name, version = wheel.name.split("-")[:2]
    engine = "sglang" if name == "sglang" else "vllm"
    asked = dict(commands(engine, version))
    if not asked:
        print(f"{place.name}: no shipped rig asks for this version")
        return 0
    found, error = answers(interpreter, engine, place, asked)
    if found is None:
        print(f"{place.name}: cannot be imported by {interpreter}: {error}")
        return 1
    print(f"{place.name}: its parser was given {len(asked)} commands")
    for rig, faults in found.items():
        print(f"  {rig}: " + ("; ".join(faults) or f"{sum(word.startswith('--') for word in asked[rig])} flags, taken"))
    return int(any(found.values()))


def answers(interpreter: str, engine: str, place: Path, asked: dict[str, list[str]]) -> tuple[dict[str, list[str]] | None, str]:
    """What is wrong with each command, nothing when it is taken; null and the last line of the error without an answer."""
    env = {**os.environ, "PYTHONPATH": str(place.resolve()), "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled sources make the next time short
    command = [interpreter, str(CHILD), engine]
    done = subprocess.run(command, input=json.dumps(asked), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found, ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
