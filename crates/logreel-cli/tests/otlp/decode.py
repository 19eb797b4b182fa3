"""Reads OTLP traces with OpenTelemetry's own messages, and prints a span per line as JSON."""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


def plain(value):
    which = value.WhichOneof("value")
    if which == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, which)


def attributes(pairs):
    keys = [pair.key for pair in pairs]
    assert len(keys) == len(set(keys)), f"an attribute comes twice: {keys}"
    return {pair.key: plain(pair.value) for pair in pairs}


request = ExportTraceServiceRequest()
request.ParseFromString(open(sys.argv[1], "rb").read())
for of_resource in request.resource_spans:
    for of_scope in of_resource.scope_spans:
        for span in of_scope.spans:
            assert len(UnknownFieldSet(span)) == 0, "a field that is none of theirs"
            print(json.dumps({
                "resource": attributes(of_resource.resource.attributes),
                "scope": of_scope.scope.name,
                "trace": span.trace_id.hex(),
                "id": span.span_id.hex(),
                "parent": span.parent_span_id.hex(),
                "name": span.name,
                "kind": Span.SpanKind.Name(span.kind),
                "start": span.start_time_unix_nano,
                "end": span.end_time_unix_nano,
                "attributes": attributes(span.attributes),
                "status": Status.StatusCode.Name(span.status.code),
                "message": span.status.message,
            }))
