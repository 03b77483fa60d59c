"""`perfmodel serve`: the HTTP API and the page."""

from __future__ import annotations

import sys
from typing import Annotated, Any

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
        import uvicorn

        from perfmodel.server.app import create_app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("perfmodel"):
            raise
        mend = "Install it: pip install 'perfmodel[server]'"
        raise MissingRequirementError(f"serve needs the extra `server` ({error.name} is missing)", mend=mend) from error
    import signal

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # what uvicorn passes the signal on to when it has stopped
    uvicorn.run(
        create_app(log=note, limit_s=limit_s), host=host, port=port, log_config=_log_config(), timeout_graceful_shutdown=1,
        server_header=False,
    )  # fmt: skip


def _log_config() -> dict[str, Any]:
    """uvicorn's, with every line on stderr."""
    from copy import deepcopy

    from uvicorn.config import LOGGING_CONFIG

    config = deepcopy(LOGGING_CONFIG)
    for handler in config["handlers"].values():
        handler["stream"] = "ext://sys.stderr"
    return config
