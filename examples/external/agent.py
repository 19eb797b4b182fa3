#!/usr/bin/env python3
"""An agent of its own that has its run recorded by Logreel, over HTTP and with nothing but the
standard library. Start `logreel serve`, then

    python3 agent.py job-1 [http://127.0.0.1:7717]

Kill it in the middle and start it again: it claims the same run and goes on from its last checkpoint.
"""
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


class Run:
    """A run that we drive: the whole client."""

    def __init__(self, base, key, spec, input):
        self.base = base
        new = {"spec": spec, "input": input, "key": key, "driver": "external"}
        status, made = self.call("POST", "/v1/runs", new)
        if status >= 400:
            raise SystemExit(made["detail"])
        self.path = "/v1/runs/" + made["run"]["id"]
        while made["lease"] is None:  # It was there already: a process before us began it.
            status, made = self.call("POST", self.path + "/lease")
            if status >= 400 and made["kind"] != "driven":
                raise SystemExit(made["detail"])
            if status >= 400:
                time.sleep(0.5)  # Until the lease of that process has run out.
                made["lease"] = None
        self.lease, self.head, self.checkpoint = made["lease"], made["head"], made["checkpoint"]

    def call(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        if hasattr(self, "lease"):
            headers["Logreel-Lease"] = self.lease["secret"]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def record(self, *events):
        """Records all of these, or none of them."""
        events = [{"kind": kind, "body": body} for kind, body in events]
        append = {"epoch": self.lease["epoch"], "append_id": str(uuid.uuid4()), "events": events}
        while True:
            try:
                status, answer = self.call("POST", self.path + "/events", append | {"expect": self.head})
            except OSError:  # No answer: the same append again is done once.
                time.sleep(0.5)
                continue
            if status >= 400 and answer["kind"] != "conflict":
                raise SystemExit(answer["detail"])
            self.head = answer["head"]
            if status < 400:
                return answer["events"]
            for event in answer["events"]:  # Someone else wrote to our run: see what, and go on.
                print("meanwhile:", event["kind"], flush=True)
                if event["kind"] == "run.cancelled":
                    raise SystemExit("cancelled")


def think(messages):
    """A model would be asked here."""
    time.sleep(float(os.environ.get("THINK", "0.1")))
    return f"something about {messages[-1]['content']}", {"input_tokens": 10, "output_tokens": 5}


def main(key, base="http://127.0.0.1:7717"):
    topics = ["tides", "clouds", "dunes"]
    run = Run(base, key, {"name": "essayist", "version": 1}, {"topics": topics})
    saved = run.checkpoint["data"] if run.checkpoint else {"done": 0, "messages": []}
    messages = saved["messages"]
    for number, topic in list(enumerate(topics, 1))[saved["done"]:]:
        messages.append({"role": "user", "content": topic})
        call = f"{topic}-{run.lease['epoch']}"  # A call that was cut off is made again under another name.
        run.record(
            ("step.started", {"step": topic, "effect": "read"}),
            ("model.called", {"call": call, "model": "example/echo", "messages": messages}),
        )
        text, spent = think(messages)
        messages.append({"role": "assistant", "content": text})
        done = {"done": number, "messages": messages}
        whole = [{"op": "add", "path": "", "value": {"written": number}}]
        run.record(
            ("model.answered", {"call": call, "message": text, "spent": spent}),
            ("step.finished", {"step": topic, "effect": "read", "output": text}),
            ("state.patched", {"patch": whole}),
            ("checkpoint.saved", {"checkpoint": f"after {topic}", "data": done}),
        )
        print("wrote about", topic, flush=True)
        if os.environ.get("DIE_AFTER") == topic:
            os._exit(9)  # As if it were killed: nothing is said to anyone.
    run.record(("run.completed", {"output": {"essays": len(topics)}}))
    run.call("DELETE", run.path + "/lease")
    print("done:", run.path, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
