"""A hook of Schemathesis: requests about the runs that `api.py` prepared, beside the description's examples."""

import json
import os
import pathlib

import schemathesis

PREPARED = json.loads(pathlib.Path(os.environ["PREPARED"]).read_text())


@schemathesis.hook
def before_add_examples(context, examples):
    given = PREPARED.get(context.operation.label)
    # Those that need nothing are called as they are.
    if given is None and not context.operation.path_parameters:
        given = {}
    if given is None:
        return
    sent = {"path_parameters": given.get("path", {}), "headers": given.get("headers", {})}
    sent["query"] = given.get("query", {})
    if "body" in given:
        sent |= {"body": given["body"], "media_type": "application/json"}
    if "text" in given:
        sent |= {"body": given["text"].encode(), "media_type": "application/octet-stream"}
    # Only these: an example of the description may end a run that is prepared for another operation.
    examples[:] = [context.operation.Case(**sent)]
