"""`perfmodel serve`: the HTTP API and the page."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Annotated

import typer

from perfmodel.cli.output import note


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", help=HELP)(serve)


HELP = """Serve the HTTP API, and the page where its packages are installed, until it is stopped (Ctrl-C or SIGTERM).

Example: `perfmodel serve --port 8000`, then open http://127.0.0.1:8000 or

    curl http://127.0.0.1:8000/v1/gap -d '{"model": "gpt-oss-20b", "gpu": "b200", "tokens": [1, 64]}'
"""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in: there is no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    limit_s: Annotated[float, typer.Option("--limit-s", min=0.1, max=3600.0, help="Longest that one plan or simulation may take.")] = 30.0,
) -> None:
    """Listen until stopped."""
    from perfmodel.errors import MissingRequirementError

    try:
        from perfmodel.server.run import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("perfmodel"):
            raise
        mend = "Install it: pip install 'perfmodel[server]'"
        raise MissingRequirementError(f"serve needs the extra `server` ({error.name} is missing)", mend=mend) from error
    listening = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    note(f"perfmodel serves http://{place}:{listening.getsockname()[1]} until Ctrl-C")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(0))  # what uvicorn passes a signal on to when it has stopped
    run(listening, limit_s=limit_s, log=note, stream="ext://sys.stderr")


def _listen(host: str, port: int) -> socket.socket:
    """A socket at this address. Raises PerfModelError where it is taken, or is none of this machine's."""
    try:
        if not host.strip():  # which would be every address of this machine
            raise OSError("no address")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except (OSError, UnicodeError) as error:
        from perfmodel.errors import PerfModelError

        reason = (getattr(error, "strerror", None) or str(error)).lower()
        mend = "Choose another --port (0 takes a free one), or another --host."
        raise PerfModelError(f"cannot listen there: {reason}", field="port", value=f"{host}:{port}", mend=mend) from error
