"""The web page: the gap of a layer and the plan of a service, in a browser, with nothing loaded from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` of `app`, beside what it serves already.

    Raises MissingRequirementError where the extra `server` is not installed. NiceGUI keeps one application a process: of several apps
    with the page, one at a time can run.
    """
    try:
        from perfmodel.page.mount import mount
    except ModuleNotFoundError as error:
        from perfmodel.errors import MissingRequirementError

        raise MissingRequirementError("the page needs the extra `server`", mend="Run: pip install 'perfmodel[server]'") from error
    mount(app)
