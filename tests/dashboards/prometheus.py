"""A real Prometheus on loopback, over samples with times of their own: exposition texts become blocks, recording rules are
computed over them (promtool tsdb create-blocks-from), and queries are asked of the server's HTTP interface."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.lab.roots import LabError
from tests.ports import free_port

RULES = Path(__file__).resolve().parents[2] / "templates/usr/share/fairlead/alerts.yml"
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")


def labelled(text: str, instance: str, at_unix: float) -> Iterator[str]:
    """Yield the samples of an agent's metrics as one scrape would store them: with the target's label and the time."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is not None:
            labels = ",".join(filter(None, (found[2], f'instance="{instance}"')))
            yield f"{found[1]}{{{labels}}} {found[3]} {at_unix:.3f}"


class Server:
    """A running Prometheus. ``url``: where it answers. ``pid``: its process."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server has taken so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def instant(self, query: str, at_unix: float) -> list[dict[str, Any]]:
        """Return the series of a query at one time. Raises LabError with the server's words for a query that it refuses."""
        return self._ask("query", query=query, time=f"{at_unix:.3f}")

    def over(self, query: str, begin_unix: float, end_unix: float, step_seconds: int) -> list[dict[str, Any]]:
        """Return the series of a query over a time."""
        return self._ask("query_range", query=query, start=f"{begin_unix:.3f}", end=f"{end_unix:.3f}", step=str(step_seconds))

    def _ask(self, path: str, **words: str) -> list[dict[str, Any]]:
        data = urllib.parse.urlencode(words).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data, timeout=60) as answer:
                result = json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise LabError(f"{words['query']}: {e.read().decode()[:400]}") from None
        assert result["resultType"] in ("vector", "matrix"), result["resultType"]
        return list(result["result"])


def blocks(folder: Path, lines: Iterable[str]) -> None:
    """Write samples into the data folder of a Prometheus."""
    source = folder / "samples.txt"
    with source.open("w") as out:
        out.writelines(f"{line}\n" for line in lines)
        out.write("# EOF\n")
    _promtool("tsdb", "create-blocks-from", "openmetrics", str(source), str(folder / "data"))
    source.unlink()


@contextmanager
def serving(folder: Path, begin_unix: float, end_unix: float) -> Iterator[Server]:
    """Serve the blocks in ``folder`` with the recording rules computed over the time between."""
    with running(folder) as server:
        words = ["--start", f"{begin_unix:.0f}", "--end", f"{end_unix:.0f}", "--url", server.url, "--eval-interval", "30s"]
        _promtool("tsdb", "create-blocks-from", "rules", *words, "--output-dir", str(folder / "data"), str(_rules(folder, 1)))
    with running(folder) as server:  # a server reads the blocks that are there when it starts
        words[words.index("--url") + 1] = server.url
        _promtool("tsdb", "create-blocks-from", "rules", *words, "--output-dir", str(folder / "data"), str(_rules(folder, 2)))
    with running(folder) as server:
        yield server


def _rules(folder: Path, turn: int) -> Path:
    """Write the recording rules that are computed in one turn: first those that read what agents export, then those that read
    the others. A server computes them one after the other by itself."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]
    for group in groups:
        group["rules"] = [r for r in group["rules"] if "record" in r and any(name in r["expr"] for name in names) == (turn == 2)]
    path = folder / f"rules-{turn}.yml"
    path.write_text(yaml.safe_dump({"groups": [group for group in groups if group["rules"]]}))
    return path


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    port = free_port()
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    program = shutil.which("prometheus")
    assert program, "prometheus is missing: tests/lab/apt.sh installs it"
    words = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=error"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(process, f"http://127.0.0.1:{port}", folder)
        yield Server(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise LabError(f"prometheus did not start: {(folder / 'prometheus.log').read_text()[-500:]}")


def _promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise LabError(f"promtool {' '.join(words[:3])}: {done.stderr[-500:]}")
