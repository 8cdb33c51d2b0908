"""What an installation weighs, and how soon it answers: `make bench-wheel`.

The wheel is built and installed into an empty environment for the core and for each extra, with the
versions of constraints.txt. Printed are the size on disk, the largest packages, and the CPU seconds
of an import, of `fedray --help` and of an audit of a small trace, the median of five.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 5


def installed(wheel: Path, extra: str, folder: Path) -> Path:
    """An environment with the wheel and an extra, made in a `folder`; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    what = f"fedray{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([str(python), *install, what], check=True)
    return python


def megabytes(folder: Path) -> Counter[str]:
    """Sizes on disk of what an environment has installed, pip and setuptools aside."""
    sizes: Counter[str] = Counter()
    packages = next(folder.glob("lib/python*/site-packages"))
    for file in packages.rglob("*"):
        owner = file.relative_to(packages).parts[0].partition(".")[0]
        if file.is_file() and owner not in ("pip", "setuptools", "pkg_resources"):
            sizes[owner] += file.stat().st_blocks * 512
    return Counter({owner: round(size / 2**20) for owner, size in sizes.items()})


def cpu_seconds(command: list[str]) -> float:
    """The median of the CPU seconds that a command takes, after a first run that compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = []
    for _ in range(REPEATS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=environment, cwd="/")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", default=["", "simulate", "optimize", "all"])
    parser.add_argument("--trace", help="a trace to audit")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", temporary]
        subprocess.run([*build, str(ROOT)], check=True)
        wheel = next(folder.glob("*.whl"))
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
        for extra in arguments.extras:
            environment = folder / (extra or "core")
            python = installed(wheel, extra, environment)
            sizes = megabytes(environment)
            largest = ", ".join(f"{name} {size}" for name, size in sizes.most_common(6))
            print(f"{extra or 'core'}: {sizes.total()} MiB ({largest})")
            command = str(python.parent / "fedray")
            print(f"  import fedray    {cpu_seconds([str(python), '-c', 'import fedray']):.2f} s")
            print(f"  fedray --help    {cpu_seconds([command, '--help']):.2f} s")
            if arguments.trace:
                audit = [command, "audit", str(Path(arguments.trace).resolve())]
                print(f"  fedray audit     {cpu_seconds(audit):.2f} s")


if __name__ == "__main__":
    main()
