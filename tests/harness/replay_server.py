"""Answers with the bytes of a recorded engine, whatever it is asked: the process behind an adapter, without the engine.

python replay_server.py FOLDER [words of a launch command, of which --port and --served-model-name are read]

FOLDER is one arm of `tests/recorded/<engine>`. Its log is printed at the start and every request line after it.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FILES = {"/server_info": "server_info.json", "/version": "version.json", "/metrics": "metrics.txt"}
STREAMS = ("/v1/completions", "/generate")


def serve(folder: Path, port: int, name: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/v1/models":
                self._answer(json.dumps({"data": [{"id": name}]}).encode())
            elif path in FILES and (folder / FILES[path]).exists():
                self._answer((folder / FILES[path]).read_bytes())
            else:
                self._answer(b"", 200 if path == "/health" else 404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer((folder / "stream.sse").read_bytes() if self.path in STREAMS else b'{"success":true}')

        def _answer(self, body: bytes, status: int = 200) -> None:
            print(self.command, self.path, flush=True)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Requests are printed by `_answer`."""

    print((folder / "server.log").read_text("utf-8"), flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    words = sys.argv[2:]
    serve(Path(sys.argv[1]), int(words[words.index("--port") + 1]), words[words.index("--served-model-name") + 1])
