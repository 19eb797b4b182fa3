import assert from "node:assert/strict";
import { test } from "node:test";
import { duration, money, offset, parseTime } from "../src/model/time";
import { beginning, cutAt, oneLine, visible } from "../src/model/visible";
import { shownStep, stepPath } from "../src/model/step";

const shown = (text: string): string =>
  visible(text)
    .map((piece) => (piece.stands ? `<${piece.text}>` : piece.text))
    .join("");

test("what cannot be seen is named", () => {
  assert.equal(shown("\u001b[31mred\u001b[0m"), "<ESC>[31mred<ESC>[0m");
  assert.equal(shown("a\u200bb\u202eevil\u2066"), "a<U+200B>b<U+202E>evil<U+2066>");
  assert.equal(shown("tab\tand\nline stay"), "tab\tand\nline stay");
  assert.equal(shown("dos\r\nline, lone\rreturn"), "dos\nline, lone<CR>return");
  assert.equal(shown("\u0000\u007f\u009b"), "<NUL><DEL><U+009B>");
  assert.equal(shown("tag\u{E0041}"), "tag<U+E0041>");
  assert.equal(shown("half\ud800"), "half<U+D800>");
  assert.equal(shown("עברית العربية"), "עברית العربية");
});

test("a joiner between pictographs is part of them, elsewhere it is named", () => {
  assert.equal(shown("👩‍💻"), "👩‍💻");
  assert.equal(shown("ad\u200dmin"), "ad<U+200D>min");
});

test("cutting never leaves half a character", () => {
  assert.equal(cutAt("ab😀", 3), "ab");
  assert.equal(oneLine("a\n\tb".repeat(2)), "a ba b");
  assert.equal(oneLine("x".repeat(400)).length, 301);
  assert.equal(beginning("a\nb\nc", 100, 2), "a\nb");
  assert.equal(beginning("a\nb\nc", 2, 9), "a\n");
});

test("times are read to the microsecond and said shortly", () => {
  assert.equal(parseTime("2026-11-15T21:31:31.342480Z") - parseTime("2026-11-15T21:31:31.342000Z"), 0.47998046875);
  assert.deepEqual([0, 0.5, 174, 8120, 59_999, 124_000, 11_520_000, 183 * 3_600_000].map(duration), [
    "0 ms", "500 µs", "174 ms", "8.1 s", "59 s", "2m 04s", "3h 12m", "7d 15h",
  ]);
  assert.deepEqual([32, 64_210, 3_723_000].map(offset), ["+0.032", "+1:04.210", "+1:02:03"]);
  assert.deepEqual([null, 0, 0.0012, 1.5, 123.4].map(money), ["–", "$0", "$0.0012", "$1.50", "$123"]);
});

test("steps are shown as everywhere else", () => {
  assert.equal(shownStep("fetch"), "fetch");
  assert.equal(shownStep(["verify", "1", "tests"]), "verify[1,tests]");
  assert.equal(shownStep([["fetch"], "parse"]), "fetch/parse");
  assert.equal(shownStep([["fetch"], ["read", "a.txt"]]), "fetch/read[a.txt]");
  assert.equal(shownStep([[["a"], "b"], "c"]), "a/b/c");
  assert.deepEqual(stepPath([["fetch"], ["read", "a.txt"]]), { outer: ["fetch"], name: "read", key: "a.txt" });
});
