"""The command `perfmodel`: thin functions that parse, call the library and hand the result to report/."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

COMMANDS = (
    "gap",
    "predict",
    "plan",
    "simulate",
    "sweep",
    "gpus",
    "spec",
    "models",
    "formats",
    "profiles",
    "validate",
    "compare",
    "scoreboard",
    "calibrate",
    "measure",
    "diagnose",
    "runs",
    "bench",
    "serve",
    "kernels",
)
"""Modules of this folder, in the order of `--help`; each has `register(app)`. They import what is heavy inside their functions."""

HELP = "Where the FLOPS of a Mixture-of-Experts layer go, microsecond by microsecond, and what would change it."


def main(argv: list[str] | None = None) -> None:
    """Run one command. Exit codes: 0, 2 for bad input, 3 for missing hardware or extra, 130 when interrupted."""
    from perfmodel.errors import PerfModelError

    if sys.stderr is None:  # closed: notes and errors go nowhere, the exit code still tells
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        _fail("stdout is closed: there is nowhere to print to", 2)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no box characters still gets its table
    app = build_app()
    try:
        try:
            app(args=argv, prog_name="perfmodel")  # not `python -m perfmodel`: completion is installed for this name
        finally:
            sys.stdout.flush()
    except PerfModelError as error:
        _fail(str(error), error.exit_code)
    except SystemExit as error:
        if _behind(error, BrokenPipeError):
            _no_reader()
        stop = _behind(error, KeyboardInterrupt)
        if stop is None:
            raise
        _fail(str(stop) or "interrupted", 130)
    except KeyboardInterrupt as stop:
        _fail(str(stop) or "interrupted", 130)
    except BrokenPipeError:
        _no_reader()
    except OSError as error:
        _silence_stdout()
        _fail(f"{error.filename or 'the output'}: {error.strerror}. Check the path and the space left.", 2)


def build_app() -> typer.Typer:
    """The application with all its commands; the command line reference is made from it, too."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.callback()(_options)
    for name in COMMANDS:
        import_module(f"perfmodel.cli.{name}").register(app)
    return app


def _behind(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """The Ctrl-C, or the closed pipe, that typer made an exit of, without a word."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _no_reader() -> NoReturn:
    """End where the reader of a pipe, `| head` say, went away: not a mistake."""
    _silence_stdout()
    sys.exit(0)


def _silence_stdout() -> None:
    """Let what is still buffered go nowhere, so that the interpreter does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"perfmodel {version('perfmodel')}")
        except PackageNotFoundError:
            typer.echo("perfmodel, a checkout that is not installed")
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)] = False,
) -> None:
    """Options of `perfmodel` itself."""


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"perfmodel: {' '.join(message.split())}\n")
    sys.exit(code)
