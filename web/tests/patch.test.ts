import assert from "node:assert/strict";
import { test } from "node:test";
import { applyPatch, difference, PatchError } from "../src/model/patch";
import type { Json } from "../src/model/types";

const check = (document: Json, patch: Json, expected: Json): void => {
  const before = JSON.stringify(document);
  assert.deepEqual(applyPatch(document, patch), expected);
  assert.equal(JSON.stringify(document), before, "the document before is left as it was");
};

test("the operations of RFC 6902 do what its appendix says", () => {
  check({ foo: "bar" }, [{ op: "add", path: "/baz", value: "qux" }], { foo: "bar", baz: "qux" });
  check({ foo: ["bar", "baz"] }, [{ op: "add", path: "/foo/1", value: "qux" }], { foo: ["bar", "qux", "baz"] });
  check({ foo: ["bar"] }, [{ op: "add", path: "/foo/-", value: ["abc"] }], { foo: ["bar", ["abc"]] });
  check({ baz: "qux", foo: "bar" }, [{ op: "remove", path: "/baz" }], { foo: "bar" });
  check({ foo: ["a", "b", "c"] }, [{ op: "remove", path: "/foo/1" }], { foo: ["a", "c"] });
  check({ baz: "qux" }, [{ op: "replace", path: "/baz", value: "boo" }], { baz: "boo" });
  check(
    { foo: { bar: "baz", waldo: "fred" }, qux: { corge: "grault" } },
    [{ op: "move", from: "/foo/waldo", path: "/qux/thud" }],
    { foo: { bar: "baz" }, qux: { corge: "grault", thud: "fred" } },
  );
  check({ foo: ["all", "grass", "cows", "eat"] }, [{ op: "move", from: "/foo/1", path: "/foo/3" }], { foo: ["all", "cows", "eat", "grass"] });
  check({ a: { b: 1 } }, [{ op: "copy", from: "/a", path: "/c" }], { a: { b: 1 }, c: { b: 1 } });
  check({ "/": 9, "~1": 10 }, [{ op: "test", path: "/~01", value: 10 }], { "/": 9, "~1": 10 });
  check(null, [{ op: "add", path: "", value: { a: 1 } }], { a: 1 });
  check({ foo: null }, [{ op: "test", path: "/foo", value: null }], { foo: null });
});

test("what cannot be applied is refused", () => {
  for (const patch of [
    [{ op: "remove", path: "/none" }],
    [{ op: "replace", path: "/none", value: 1 }],
    [{ op: "add", path: "/none/deep", value: 1 }],
    [{ op: "add", path: "/list/5", value: 1 }],
    [{ op: "add", path: "/list/01", value: 1 }],
    [{ op: "test", path: "/list", value: [2] }],
    [{ op: "spin", path: "/list" }],
    [{ op: "replace", path: "/toString", value: 1 }],
  ] as Json[])
    assert.throws(() => applyPatch({ list: [1] }, patch), PatchError, JSON.stringify(patch));
});

test("names of members are data", () => {
  const after = applyPatch({}, [{ op: "add", path: "/__proto__", value: { polluted: true } }]);
  assert.equal(({} as { polluted?: boolean }).polluted, undefined);
  assert.deepEqual(Object.keys(after as object), ["__proto__"]);
});

test("a difference tells absent from null, by pointer", () => {
  assert.deepEqual(difference({ a: null, b: 1, "x/y": [1, 2] }, { b: null, c: null, "x/y": [1, 3, 4] }), [
    { pointer: "/a", what: "removed", before: null },
    { pointer: "/b", what: "changed", before: 1, after: null },
    { pointer: "/x~1y/1", what: "changed", before: 2, after: 3 },
    { pointer: "/x~1y/2", what: "added", after: 4 },
    { pointer: "/c", what: "added", after: null },
  ]);
  assert.deepEqual(difference({ a: [1] }, { a: [1] }), []);
  assert.equal(difference(null, { a: 1 })[0]?.what, "changed");
});
