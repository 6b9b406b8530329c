"""A supervisord that records what it is asked and answers as told."""

from __future__ import annotations

import os
import socketserver
import threading
from typing import TYPE_CHECKING, Any
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from xmlrpc.client import Fault


_WITH_PROCESS = {"RUNNING", "STARTING", "STOPPING"}
"""States of a program that has a process: in these tests, the one that publishes."""


class FakeSupervisord:
    """An XML-RPC server on a unix socket that records what it is asked and answers as told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.authorization: str | None = None
        self.added: list[str] = []
        self.changed: list[str] = []
        self.removed: list[str] = []
        self.programs: dict[str, dict[str, Any]] = {}
        self.refuses: dict[str, Fault] = {}
        self.while_stopping: list[str] = []
        """States that the next looks after a stop show, one by one."""
        self.heard: Callable[[str], object] = str
        """Is told each method before it is answered."""
        fake = self

        class Handler(SimpleXMLRPCRequestHandler):
            rpc_paths = ("/RPC2",)
            disable_nagle_algorithm = False

            @override
            def do_POST(self) -> None:
                fake.authorization = self.headers.get("Authorization")
                super().do_POST()

            @override
            def address_string(self) -> str:
                return "unix"

            @override
            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        class Server(socketserver.UnixStreamServer, SimpleXMLRPCDispatcher):
            def __init__(self) -> None:
                SimpleXMLRPCDispatcher.__init__(self, allow_none=True)
                socketserver.UnixStreamServer.__init__(self, str(path), Handler)

            @override
            def _dispatch(self, method: str, params: Any) -> Any:
                return fake.answer(method.removeprefix("supervisor."), *params)

        self.pid = os.getpid()  # of what a program with a process says that it runs as
        self.server = Server()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)

    def program(self, name: str, state: str, **more: object) -> None:
        """Let there be a program."""
        self.programs[name] = {
            "name": name,
            "statename": state,
            "pid": self.pid if state in _WITH_PROCESS else 0,
            "description": "",
            "exitstatus": 0,
            **more,
        }

    def answer(self, method: str, *arguments: object) -> object:
        """One call."""
        self.heard(method)
        if method != "getAllProcessInfo":
            self.calls.append(" ".join([method, *(str(argument) for argument in arguments)]))
        if method in self.refuses:
            raise self.refuses[method]
        match method:
            case "reloadConfig":
                return [[self.added, self.changed, self.removed]]
            case "getSupervisorVersion":
                return "4.3.0"
            case "getAllProcessInfo":
                if self.while_stopping:
                    for program in self.programs.values():
                        program["statename"] = self.while_stopping.pop(0)
                return list(self.programs.values())
            case _:
                return True
