#!/usr/bin/env python3
"""Schemathesis, a stranger to this code, tries every operation of the server's own description.

    python scripts/api.py LOGREEL FOLDER

Twice. First it knows nothing but the description, on an empty store: what it reaches it finds by the
examples and links there. Then, on another server, there is a run in each condition that an operation needs (one
waits for a yes, one is in doubt, ..), and `api_prepared.py` tells it their ids.

Fails on a 5xx, on a status, content type, header or body that the description does not have, and when the
description alone leads to a 2xx on less than 80 % of the operations, or with prepared runs on less than 90 %.
What is tried is bounded by numbers and a seed, not by time.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

CHECKS = ",".join(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)
SEED = "7"
# Something that ends, something for a person, something for a program, a write that nobody knows the end of, and
# an agent to steer.
SPECS = {
    "hello.toml": 'name = "hello"\n[[step]]\nid = "greet"\nrun = "echo hello"\n',
    "ask.toml": 'name = "ask"\n[[step]]\nid = "ask"\nwait = "approval"\nprompt = "Go on?"\n',
    "listen.toml": 'name = "listen"\n[[step]]\nid = "go"\nwait = "signal"\nname = "go"\n',
    "fail.toml": 'name = "fail"\n[[step]]\nid = "fail"\nrun = "exit 1"\n',
    "doubt.toml": 'name = "doubt"\n[[step]]\nid = "publish"\neffect = "write"\ntimeout = "10ms"\nrun = "sleep 60"\n',
    "agent.toml": 'name = "agent"\nmodel = "scripted/answers.jsonl"\ntools = ["shell"]\n',
    "answers.jsonl": json.dumps({"tool_calls": [{"name": "shell", "arguments": {"command": "true"}}]}) + "\n",
}


def call(method, url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def serving(logreel, folder):
    """A server on a new store; its address."""
    specs = pathlib.Path(folder) / "specs"
    specs.mkdir(parents=True)
    for name, text in SPECS.items():
        (specs / name).write_text(text)
    serve = [logreel, "--store", f"{folder}/runs.db", "serve", "--listen", "127.0.0.1:0", "--specs", str(specs)]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    try:
        url = None
        while url is None:
            line = server.stderr.readline()
            assert line, "the server did not start"
            found = re.search(r"http://[\d.:]+", line)
            url = found and found[0]
        yield url
        assert server.poll() is None, "the server ended"
    finally:
        server.terminate()
        server.wait()


def prepare(url):
    """A run in each condition that an operation needs; what the operations are to be called with."""

    def start(spec, **more):
        return json.loads(call("POST", f"{url}/v1/runs", {"spec": spec} | more))

    def until(holds, spec, **more):
        run = start(spec, **more)["id"]
        deadline = time.monotonic() + 60
        while not holds(json.loads(call("GET", f"{url}/v1/runs/{run}"))):
            assert time.monotonic() < deadline, f"{spec} did not come as far as it should"
            time.sleep(0.05)
        return run

    def waits(kind):
        return lambda run: any(wait["kind"] == kind for wait in run["waiting"])

    def ended(run):
        return run["finished_at"] is not None

    def external(**more):
        made = start("importer", driver="external", **more)
        return made["run"]["id"], made["lease"]["secret"], made

    hello = until(ended, "hello")
    prepared = {
        "POST /v1/runs": {"body": {"spec": "hello"}},
        "POST /v1/runs/{id}/retry": {"path": {"id": until(ended, "fail")}, "body": {}},
        "POST /v1/runs/{id}/fork": {"path": {"id": hello}, "body": {"at": 1}},
        "GET /v1/runs/{id}/diff/{other}": {"path": {"id": hello, "other": until(ended, "hello")}},
        "POST /v1/runs/{id}/answer": {"path": {"id": until(waits("approval"), "ask")}, "body": {"approve": True}},
        "POST /v1/runs/{id}/signals/{name}": {
            "path": {"id": until(waits("signal"), "listen"), "name": "go"},
            "body": {"value": 1},
        },
        "POST /v1/runs/{id}/resolve": {
            "path": {"id": until(waits("in_doubt"), "doubt")},
            "body": {"call": "publish", "returned": "done"},
        },
        "POST /v1/runs/{id}/messages": {
            "path": {"id": until(waits("approval"), "agent", input="go")},
            "body": {"text": "Wait."},
        },
        "POST /v1/runs/{id}/cancel": {"path": {"id": until(waits("approval"), "ask")}, "body": {}},
        "POST /v1/runs/{id}/pause": {"path": {"id": until(waits("approval"), "ask")}, "body": {}},
        "POST /v1/sessions/{session}/cancel": {"path": {"session": "one"}, "body": {}},
        "POST /v1/sessions/{session}/close": {"path": {"session": "two"}},
        "POST /v1/agui/{spec}": {
            "path": {"spec": "hello"},
            "body": {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "go"}]},
        },
    }
    until(waits("approval"), "ask", session="one")
    until(waits("approval"), "ask", session="two")
    for operation in ["GET /v1/runs/{id}", "GET /v1/runs/{id}/events", "GET /v1/runs/{id}/export"]:
        prepared[operation] = {"path": {"id": hello}}
    paused = until(waits("approval"), "ask")
    call("POST", f"{url}/v1/runs/{paused}/pause", {})
    prepared["POST /v1/runs/{id}/resume"] = {"path": {"id": paused}, "body": {}}

    lease = "/v1/runs/{id}/lease"
    for operation in [f"PUT {lease}", f"DELETE {lease}"]:
        run, secret, _ = external()
        prepared[operation] = {"path": {"id": run}, "headers": {"Logreel-Lease": secret}}
    run, secret, made = external()
    events = [{"kind": "step.finished", "body": {"step": "read", "output": 3}}]
    append = {"epoch": made["lease"]["epoch"], "expect": made["head"], "append_id": "first", "events": events}
    prepared["POST /v1/runs/{id}/events"] = {"path": {"id": run}, "headers": {"Logreel-Lease": secret}, "body": append}
    run, secret, _ = external()
    given_back = urllib.request.Request(f"{url}/v1/runs/{run}/lease", method="DELETE")
    given_back.add_header("Logreel-Lease", secret)
    urllib.request.urlopen(given_back).close()
    prepared[f"POST {lease}"] = {"path": {"id": run}}
    # The example of the description is a text with its digest; it only lacks whose it is to be.
    blob = json.loads(call("GET", f"{url}/openapi.json"))["paths"]["/v1/blobs/{digest}"]["put"]
    digest = next(it["example"] for it in blob["parameters"] if it["name"] == "digest")
    [text] = blob["requestBody"]["content"]["application/octet-stream"]["examples"].values()
    put = urllib.request.Request(f"{url}/v1/blobs/{digest}?run={run}", text["value"].encode(), method="PUT")
    put.add_header("Content-Type", "application/octet-stream")
    urllib.request.urlopen(put).close()
    prepared["GET /v1/blobs/{digest}"] = {"path": {"digest": digest}}
    prepared["PUT /v1/blobs/{digest}"] = {"path": {"digest": digest}, "query": {"run": run}, "text": text["value"]}
    return prepared


def reached(url):
    """The operations that were answered with a 2xx, all of them, and how much was answered."""
    paths = json.loads(call("GET", url + "/openapi.json"))["paths"]
    every = {(method.upper(), path) for path, item in paths.items() for method in item}
    counts = {}
    for line in call("GET", url + "/metrics").splitlines():
        found = re.match(r'\w+_count\{method="(\w+)",route="([^"]+)",status="(\d+)"\} (\d+)', line)
        if found:
            counts[found.group(1, 2, 3)] = int(found[4])
    broken = sorted(key for key in counts if key[2].startswith("5"))
    assert not broken, f"5xx: {broken}"
    well = {(method, route) for method, route, status in counts if status.startswith("2")} & every
    return well, every, sum(counts.values())


def tried(url, folder, phases, examples, **env):
    """Schemathesis, and what it reached."""
    schemathesis = pathlib.Path(sys.executable).with_name("schemathesis")
    begun = time.monotonic()
    done = subprocess.run(
        [schemathesis, "run", url + "/openapi.json", "--checks", CHECKS, "--phases", phases]
        + ["--seed", SEED, "--max-examples", str(examples), "--generation-database", "none"]
        + ["--continue-on-failure", "--no-color", "--warnings", "off", "--request-timeout", "20"],
        env=os.environ | env,
        # Its configuration is what is said here.
        cwd=folder,
    )
    took = time.monotonic() - begun
    well, every, requests = reached(url)
    print(f"{requests} requests in {took:.0f} s; 2xx on {len(well)} of {len(every)} operations")
    if well != every:
        print("not on:", ", ".join(" ".join(it) for it in sorted(every - well)))
    assert done.returncode == 0, "schemathesis found something"
    return well, every


def main(logreel, folder):
    logreel, folder = pathlib.Path(logreel).resolve(), pathlib.Path(folder).resolve()
    with serving(logreel, folder / "alone") as url:
        alone, every = tried(url, folder, "examples,coverage,fuzzing,stateful", 10)
    with serving(logreel, folder / "prepared") as url:
        told = folder / "prepared.json"
        told.write_text(json.dumps(prepare(url)))
        hooks = pathlib.Path(__file__).resolve().parent
        env = {"SCHEMATHESIS_HOOKS": "api_prepared", "PYTHONPATH": str(hooks), "PREPARED": str(told)}
        prepared, _ = tried(url, folder, "examples", 1, **env)
    print(f"by the description alone {len(alone)}, with prepared runs {len(prepared)}, of {len(every)} operations")
    assert len(alone) >= 0.8 * len(every), "the description leads to a 2xx on less than 80 % of the operations"
    assert len(prepared) >= 0.9 * len(every), "with prepared runs there is a 2xx on less than 90 % of the operations"


if __name__ == "__main__":
    main(*sys.argv[1:])
