"""A GitHub for tests: the checks API on a local port, which holds every request and answer against GitHub's own description.

A request that the description does not allow is answered 400 and kept in `problems`, which the fixture finds empty at the end.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from jsonschema import Draft202012Validator

OPERATIONS = json.loads((Path(__file__).parent / "github_api.json").read_text(encoding="utf-8"))["operations"]
TOKEN = "a-token-for-tests"
REPOSITORY = "octo/kernels"
SUMMARY_BYTES = 65_535
WHEN = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class Planned:
    """An answer that stands in for the next request of a method."""

    method: str
    status: int
    message: str
    headers: dict[str, str]
    takes_effect: bool = False
    after: int = 0


@dataclass
class FakeGitHub:
    """The server's state: what tests set up, and what they look at."""

    url: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)

    def fail(self, method: str, status: int, message: str = "no", times: int = 1, **how: Any) -> None:
        """Answer the next `times` requests of a method with a failure.

        Args:
            how: `takes_effect`: do what was asked before; `after`: let so many pass first; the others are headers.
        """
        effect, after = how.pop("takes_effect", False), how.pop("after", 0)
        headers = {name.replace("_", "-"): value for name, value in how.items()}
        self.planned += [Planned(method, status, message, headers, effect, after if n == 0 else 0) for n in range(times)]

    def put_run(self, name: str, sha: str, **fields: Any) -> dict[str, Any]:
        """A check run that is there before."""
        number = 1000 + len(self.runs)
        run = {
            "id": number,
            "node_id": f"CR_{number}",
            "name": name,
            "head_sha": sha,
            "url": f"{self.url}/repos/{REPOSITORY}/check-runs/{number}",
            "html_url": f"https://github.example/{REPOSITORY}/runs/{number}",
            "details_url": None,
            "external_id": "",
            "status": "queued",
            "conclusion": None,
            "started_at": WHEN,
            "completed_at": None,
            "output": {"title": None, "summary": None, "text": None},
            "annotations": [],
        }
        self.runs.append(run | fields)
        return self.runs[-1]

    @property
    def writes(self) -> list[Seen]:
        return [one for one in self.seen if one.method != "GET"]

    def handle(self, one: Seen) -> tuple[int, Any, dict[str, str]]:
        self.seen.append(one)
        operation, values, wrong = self._check(one)
        if wrong or operation is None:
            self.problems += [f"{one.method} {one.path}: {text}" for text in wrong]
            return 400, {"message": "; ".join(wrong)}, {}
        planned = next((p for p in self.planned if p.method == one.method), None)
        if planned and planned.after:
            planned.after -= 1
        elif planned:
            self.planned.remove(planned)
            if planned.takes_effect:
                self._do(operation, values, one)
            return planned.status, {"message": planned.message}, planned.headers
        if len(((one.body or {}).get("output") or {}).get("summary", "").encode()) > SUMMARY_BYTES:
            return 422, {"message": "Validation Failed: summary is too long"}, {}
        answer = self._do(operation, values, one)
        if answer is None:
            return 404, {"message": "Not Found"}, {}
        self.problems += [f"answer to {one.method} {one.path}: {e.message}" for e in _errors(operation["response"], answer)]
        return operation["status"], answer, {}

    def _check(self, one: Seen) -> tuple[dict[str, Any] | None, dict[str, str], list[str]]:
        found = [(o, m) for o in OPERATIONS if o["method"] == one.method and (m := _matches(o["path"], one.path))]
        if not found:
            return None, {}, ["no such operation"]
        operation, values = found[0]
        wrong = [
            f"parameter {name} is unknown" for name in set(one.query) - {p["name"] for p in operation["parameters"] if p["in"] == "query"}
        ]
        for parameter in operation["parameters"]:
            text = (values if parameter["in"] == "path" else one.query).get(parameter["name"])
            if text is not None:
                value = int(text) if parameter["schema"]["type"] == "integer" and text.isdecimal() else text
                wrong += [f"parameter {parameter['name']}: {e.message}" for e in _errors(parameter["schema"], value)]
        if values.get("owner", "") + "/" + values.get("repo", "") != REPOSITORY:
            wrong.append("another repository")
        wrong += _header_faults(one)
        if operation["request"]:
            wrong += [e.message for e in _errors(operation["request"], one.body)]
            wrong += _unknown_keys(operation["request"], one.body)
        elif one.body is not None:
            wrong.append("a body where none belongs")
        return operation, values, wrong

    def _do(self, operation: dict[str, Any], values: dict[str, str], one: Seen) -> Any:
        if operation["method"] == "POST":
            return _public(self._change(self.put_run(one.body["name"], one.body["head_sha"]), one.body))
        if "ref" in values:
            rows = [r for r in self.runs if r["head_sha"] == values["ref"] and r["name"] == one.query.get("check_name", r["name"])]
            if one.query.get("filter", "latest") == "latest":
                rows = list({(r["name"], r["external_id"]): r for r in rows}.values())
            return {"total_count": len(rows), "check_runs": [_public(r) for r in rows]}
        run = next((r for r in self.runs if r["id"] == int(values["check_run_id"])), None)
        if run is None:
            return None
        if operation["method"] == "PATCH":
            return _public(self._change(run, one.body))
        size, page = int(one.query.get("per_page", 30)), int(one.query.get("page", 1))
        return [_full(a) for a in run["annotations"][(page - 1) * size : page * size]]

    def _change(self, run: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        run |= {k: v for k, v in body.items() if k not in ("output", "actions")}
        if output := body.get("output"):
            run["annotations"] = run["annotations"] + output.get("annotations", [])
            run["output"] = run["output"] | {k: v for k, v in output.items() if k != "annotations"}
        if body.get("conclusion"):
            run |= {"status": "completed", "completed_at": WHEN}
        elif "status" in body:
            run |= {"conclusion": None, "completed_at": None}
        return run


def _public(run: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in run.items() if k != "annotations"}
    counted = {"annotations_count": len(run["annotations"]), "annotations_url": f"{run['url']}/annotations"}
    return rest | {"output": run["output"] | counted, "check_suite": {"id": 5}, "app": None, "pull_requests": []}


def _full(annotation: dict[str, Any]) -> dict[str, Any]:
    empty = {"start_column": None, "end_column": None, "title": None, "raw_details": None, "blob_href": "https://github.example/blob"}
    return empty | annotation


def _matches(template: str, path: str) -> dict[str, str] | None:
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template))
    match = re.fullmatch(pattern, path)
    return {k: unquote(v) for k, v in match.groupdict().items()} if match else None


def _errors(schema: dict[str, Any], value: Any) -> Iterator[Any]:
    return Draft202012Validator(schema).iter_errors(value)


def _unknown_keys(schema: dict[str, Any], value: Any, where: str = "body") -> list[str]:
    """Keys that the description does not name, which GitHub would drop in silence."""
    if isinstance(value, list):
        return [text for item in value for text in _unknown_keys(schema.get("items", {}), item, f"{where}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    unknown = [f"{where}.{name} is unknown" for name in value if name not in known]
    return unknown + [text for name in value if name in known for text in _unknown_keys(known[name], value[name], f"{where}.{name}")]


def _header_faults(one: Seen) -> list[str]:
    expected = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28"}
    if one.body is not None:
        expected["content-type"] = "application/json"
    wrong = [f"header {name} is {one.headers.get(name)!r}" for name, value in expected.items() if one.headers.get(name) != value]
    if one.headers.get("authorization") not in (f"token {TOKEN}", f"Bearer {TOKEN}"):
        wrong.append("no token, or another")
    return wrong + ([] if one.headers.get("user-agent") else ["no user agent"])


@contextmanager
def serve() -> Iterator[FakeGitHub]:
    """A GitHub on a port of this machine."""
    fake = FakeGitHub()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                one = Seen(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers)
                status, answer, more = fake.handle(one)
            data = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(data))} | more).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
