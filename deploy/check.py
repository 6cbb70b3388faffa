"""Try what is in this folder without Docker: run the Dockerfile's steps, read compose file and unit.

    python deploy/check.py [--full] [--keep FOLDER]

The steps of the Dockerfile run one after the other in a temporary folder that takes the place of the image's
root: COPY copies, ENV sets, RUN runs, and at the end the ENTRYPOINT serves a small index until HEALTHCHECK's
command says that it is well. What cannot be so here is named in the output:

* There is no base image. This Python takes its place, and `useradd` is left out.
* Installing the dependencies takes minutes and hundreds of megabytes: without --full only pmpguard itself is
  installed, and the packages of this Python are seen by the image's.

The compose file is read for what it refers to (volumes, services, variables, files), and checked by
`docker compose config` where there is one; the unit by `systemd-analyze verify` where there is one.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
IGNORED = FOLDER / "Dockerfile.dockerignore"
PLACES = ("/opt/pmpguard", "/source", "/data")  # of the image; each becomes a folder below the temporary one
FIRST_EMBEDDING_HOURS = 24  # that whoever waits for `pmpguard up` must have patience for
VARIABLE = re.compile(r"\$\{(\w+)(:\?[^}]*)?\}")
DIRECTIVES = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        "Type", "User", "EnvironmentFile", "StateDirectory", "WorkingDirectory", "ExecStart", "Restart",
        "RestartSec", "TimeoutStopSec", "LimitNOFILE", "NoNewPrivileges", "CapabilityBoundingSet",
        "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables",
        "ProtectKernelModules", "ProtectControlGroups", "RestrictAddressFamilies", "RestrictSUIDSGID",
        "LockPersonality",
    },
    "Install": {"WantedBy"},
}  # fmt: skip


class Failure(Exception):
    """Something in this folder is wrong."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise Failure(message)


def steps(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Instructions and their values, continued lines joined.

    >>> list(steps("FROM a  \\n# note\\nRUN b \\\\\\n  c"))
    [('FROM', 'a'), ('RUN', 'b c')]
    """
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\s*\\\n\s*", " ", lines).splitlines():
        if line.strip():
            name, _, value = line.strip().partition(" ")
            yield name.upper(), value.strip()


def is_ignored(path: str, file: Path) -> bool:
    """Whether a file of patterns keeps a path from Docker: the last one counts that names it or a parent."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    parts = PurePosixPath(path).parts
    names = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    ignored = False
    for line in filter(None, lines):
        pattern = line.removeprefix("!").strip("/")
        if any(fnmatch.fnmatch(name, pattern) for name in names):
            ignored = not line.startswith("!")
    return ignored


class Image:
    """A folder in place of an image's root, and the settings that steps have left."""

    def __init__(self, root: Path, *, full: bool) -> None:
        self.root, self.full = root, full
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(root), "LANG": "C.UTF-8"}
        self.settings: dict[str, str] = {}
        self.folder = root

    def inside(self, text: str) -> str:
        """Paths of the image as they are here."""
        for place in PLACES:
            text = re.sub(rf"(?<![\w/.]){place}(?![\w-])", f"{self.root}{place}", text)
        return text

    def run(self, command: list[str] | str) -> None:
        shell = ["/bin/sh", "-ec", command] if isinstance(command, str) else command
        print(
            f"  run {(command if isinstance(command, str) else shlex.join(command)).partition(chr(10))[0]}",
            flush=True,
        )
        done = subprocess.run(shell, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        require(done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def do(self, name: str, value: str) -> None:
        match name:
            case "FROM":
                require(re.search(r":\d", value), f"FROM {value}: an image without a version")
                print(f"  stand-in for {value}: Python {sys.version.split()[0]}")
            case "WORKDIR":
                self.folder = Path(self.inside(value))
                self.folder.mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(value)
            case "ENV":
                for pair in shlex.split(value):
                    key, _, text = pair.partition("=")
                    known = self.inside(text).replace("$PATH", self.environment["PATH"])
                    self.environment[key] = known
            case "RUN":
                self._run_step(value)
            case "USER" | "VOLUME" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                self.settings[name] = value
            case _:
                raise Failure(f"{name}: this check does not know it")

    def _copy(self, value: str) -> None:
        *sources, target = shlex.split(value)
        if sources[0].startswith("--from="):
            require(Path(self.inside(target)).is_dir(), f"COPY {value}: no stage made it")
            return
        for source in sources:
            path, place = ROOT / source, self.folder / target
            require(path.exists(), f"COPY {source}: not in the repository")
            require(not is_ignored(source, IGNORED), f"COPY {source}: {IGNORED.name} leaves it out")
            if path.is_dir():
                shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(path, place)

    def _run_step(self, value: str) -> None:
        if value.startswith("useradd"):
            print(f"  left out, for it changes this machine: {value}")
            return
        if " -m venv " in value:
            value = value.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
        elif "pip install" in value:
            hashed, ours = " --require-hashes " in value, value.endswith(" --no-deps --no-build-isolation .")
            require(hashed or ours, f"RUN {value}: installs files that no hash names")
            if hashed and not self.full:
                print(f"  left out without --full: {value}")
                return
            if not self.full:
                self._see_packages()
        self.run(self.inside(value))

    def _see_packages(self) -> None:
        """Let the image's Python find this one's packages after its own, whose setuptools may be too old."""
        (found,) = (self.root / "opt/pmpguard/lib").glob("python*/site-packages")
        (found / "distutils-precedence.pth").unlink(missing_ok=True)
        for name in ("setuptools", "pkg_resources", "_distutils_hack"):
            shutil.rmtree(found / name, ignore_errors=True)
        (found / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")


def check_dockerfile(root: Path, *, full: bool) -> None:
    image = Image(root, full=full)
    for name, value in steps((FOLDER / "Dockerfile").read_text(encoding="utf-8")):
        image.do(name, value)
    settings = image.settings
    check_settings(settings, image.environment)
    entry = [*yaml.safe_load(settings["ENTRYPOINT"])]
    program = shutil.which(entry[0], path=image.environment["PATH"])
    require(program and program.startswith(str(root)), f"ENTRYPOINT {entry}: not what was installed")
    image.run([*entry, "--version"])
    image.run(["python", str(FOLDER / "small_index.py")])
    serve(image, [*entry, *map(image.inside, yaml.safe_load(settings["CMD"]))])


def check_settings(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """What the image leaves to whoever starts it."""
    require(settings.get("USER") not in (None, "root", "0"), "USER: the server would run as root")
    require(settings.get("EXPOSE") == environment["PMPGUARD_PORT"], "EXPOSE is not PMPGUARD_PORT")
    require("CMD " in settings.get("HEALTHCHECK", ""), "HEALTHCHECK: nobody would notice that it hangs")


def serve(image: Image, command: list[str]) -> None:
    """Start it, ask HEALTHCHECK's command, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**image.environment, "PMPGUARD_PORT": port, "PMPGUARD_HOST": "127.0.0.1"}
    print(f"  serve {command}", flush=True)
    health = image.settings["HEALTHCHECK"].partition("CMD ")[2]
    server = subprocess.Popen(command, cwd=image.folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        for _ in range(120):
            require(server.poll() is None, f"{command}: ended with {server.returncode}")
            done = subprocess.run(["/bin/sh", "-c", health], env=environment, capture_output=True, text=True)
            if done.returncode == 0:
                break
            time.sleep(0.5)
        require(done.returncode == 0, f"HEALTHCHECK never passed: {done.stderr[-500:]}")
        server.send_signal(signal.SIGTERM)
        require(server.wait(30) == 0, f"{command}: did not end well on SIGTERM")
        done = subprocess.run(["/bin/sh", "-c", health], env=environment, capture_output=True)
        require(done.returncode, "HEALTHCHECK passes without a server")
    finally:
        server.kill()
        server.wait()


def check_compose(text: str, given: Mapping[str, str]) -> None:
    """That whatever it refers to is there; `given` are the variables of example.env."""
    compose: dict[str, Any] = yaml.safe_load(text)
    services = compose["services"]
    for name, service in services.items():
        image = service.get("image", "")
        require(image and ("build" in service or ":" in image or image == "pmpguard"), f"{name}: {image!r}")
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            require(source in compose["volumes"] or source.startswith("${"), f"{name}: volume {source}")
        for other, condition in service.get("depends_on", {}).items():
            require(other in services, f"{name} depends on {other}, which is no service")
            checked = "healthcheck" in services[other] or services[other].get("image") == "pmpguard"
            waits = condition["condition"] == "service_healthy"
            require(checked or not waits, f"{other}: no healthcheck")
            if waits and "up" in services[other].get("command", [])[:1]:
                patience = services[other].get("healthcheck", {}).get("start_period", "")
                known = re.fullmatch(r"(\d+)h", patience)
                enough = known is not None and int(known[1]) >= FIRST_EMBEDDING_HOURS
                require(enough, f"{other}: {name} gives up after {patience or 'ten minutes'} of embedding")
        for port in service.get("ports", []):
            require(port.startswith("127.0.0.1:"), f"{name}: port {port} is open to everybody, without TLS")
        if build := service.get("build"):
            path = FOLDER / build["context"] / build["dockerfile"]
            require(path.is_file(), f"{name}: no {path}")
    missing = {name for name, _ in VARIABLE.findall(text)} - set(given)
    require(not missing, f"example.env lacks {sorted(missing)}")
    unused = set(given) - {name for name, _ in VARIABLE.findall(text)}
    require(not unused, f"nothing uses {sorted(unused)} of example.env")
    require(not any(given.values()), "example.env holds a value")


def check_compose_schema(path: Path, given: Mapping[str, str]) -> None:
    """Docker Compose's own opinion, where it is installed: with every variable set, and with none of them."""
    compose = compose_program()
    if compose is None:
        print("  Docker Compose is not here: only what the file refers to was checked")
        return
    command = [*compose, "--file", str(path), "--env-file", os.devnull, "--profile", "*", "config", "--quiet"]
    outside = {name: value for name, value in os.environ.items() if name not in given}
    done = subprocess.run(
        command, env=outside | dict.fromkeys(given, "/given"), capture_output=True, text=True
    )
    require(done.returncode == 0, f"docker compose config: {done.stderr}")
    done = subprocess.run(command, env=outside, capture_output=True, text=True)
    require(done.returncode, "compose.yaml would start without a password")
    print(f"  {' '.join(compose)} config: well")


def compose_program() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and not subprocess.run([*command, "version"], capture_output=True).returncode
        ):
            return command
    return None


def check_unit(path: Path) -> None:
    """Sections and directives we know, then systemd's own opinion where it is installed."""
    section = ""
    for line in filter(None, map(str.strip, path.read_text(encoding="utf-8").splitlines())):
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            known = line.partition("=")[0] in DIRECTIVES.get(section, ())
            require(known and "=" in line, f"{path.name}: {line!r} in [{section}]")
    if shutil.which("systemd-analyze") is None:
        print("  systemd-analyze is not here: only names were checked")
        return
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    # Where pmpguard is not installed in /opt that is all it may complain about.
    complaints = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    require(not complaints, "\n".join(complaints))


def variables(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="install the dependencies too")
    parser.add_argument("--keep", type=Path, help="a new folder for what the steps make")
    options = parser.parse_args()
    given = variables(FOLDER / "example.env")
    try:
        print("compose.yaml")
        check_compose((FOLDER / "compose.yaml").read_text(encoding="utf-8"), given)
        check_compose_schema(FOLDER / "compose.yaml", given)
        print("pmpguard.service")
        check_unit(FOLDER / "pmpguard.service")
        print("Dockerfile")
        if options.keep:
            options.keep.mkdir(parents=True)
            check_dockerfile(options.keep.resolve(), full=options.full)
        else:
            with tempfile.TemporaryDirectory() as folder:
                check_dockerfile(Path(folder).resolve(), full=options.full)
    except Failure as failure:
        print(f"wrong: {failure}", file=sys.stderr)
        return 1
    print("all as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
