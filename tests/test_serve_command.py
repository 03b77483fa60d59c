"""`perfmodel serve`: what it needs, where it listens, how it stops."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest


def test_without_the_extra_the_command_names_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "perfmodel.server.run", raising=False)
    code, _, message = run("serve")
    assert (code, "pip install 'perfmodel[server]'" in message) == (3, True)


def test_a_port_that_is_taken(run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, _, message = run("serve", "--port", other.getsockname()[1])
    assert (code, "cannot listen there" in message) == (2, True)


def test_no_host_does_not_mean_all_of_them(run):
    code, _, message = run("serve", "--host", "", "--port", 0)
    assert (code, "no address" in message) == (2, True)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_a_server_stops_cleanly_with_a_request_running(tmp_path):
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("w") as stream:
        server = subprocess.Popen([sys.executable, "-m", "perfmodel", "serve", "--port", "0"], stderr=stream, env=environment)
    try:
        while "serves" not in (line := log.read_text().partition("\n")[0]):
            assert server.poll() is None
            time.sleep(0.05)
        url = line.split()[2]
        body = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 1, "rates": [1.0] * 20, "isl": 1000, "osl": 2000, "requests": 200_000}
        asked = urllib.request.Request(url + "/v1/simulate", json.dumps(body).encode())

        async def ask_and_stop() -> int:
            running = asyncio.create_task(asyncio.to_thread(status_of, asked))
            await asyncio.sleep(1.0)
            await asyncio.to_thread(status_of, url + "/health")  # what is answered later came later: the request is in
            server.send_signal(signal.SIGTERM)
            return await running

        assert asyncio.run(ask_and_stop()) == 503
        assert server.wait(20) == 0
        assert "Traceback" not in log.read_text()
    finally:
        server.kill()


def status_of(request: urllib.request.Request | str) -> int:
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
