// What the tests run: agents whose model is a script, and workflows of small commands.

const line = (value) => `${JSON.stringify(value)}\n`;

/** Speaks slowly, so that it can be watched, asks before it writes, and ends. */
export const AGENT = {
  "specs/writer.toml": `name = "writer"
model = "scripted/writer.jsonl"
tools = ["fs.write", "fs.read"]
max_turns = 20
[budget]
tokens = 50_000
[policy]
ask = ["fs.write"]
`,
  "specs/writer.jsonl":
    line({
      text: "First I will look around, and tell you in many words what I am about to do here.",
      chunks: 40,
      delay_ms: 7000,
      tool_calls: [{ id: "look", name: "fs.read", arguments: { path: "specs/writer.toml" } }],
      usage: { input_tokens: 1200, output_tokens: 80 },
    }) +
    line({
      text: "Now I write it down.",
      chunks: 6,
      delay_ms: 300,
      tool_calls: [{ id: "write", name: "fs.write", arguments: { path: "note.txt", content: "kept" } }],
      usage: { input_tokens: 1400, output_tokens: 40 },
    }) +
    line({ text: "It is written: the note says kept.", chunks: 8, delay_ms: 300, usage: { input_tokens: 1500, output_tokens: 20 } }),
};

/** Forty steps, one after the other, of a sixth of a second; the last ends only when it is told to (`letGo`), however long the page takes. */
export const HELD = {
  "specs/held.toml":
    `name = "held"\n` +
    Array.from({ length: 40 }, (_, i) => {
      const needs = i === 0 ? "" : `needs = ["s${i - 1}"]\n`;
      const run = i === 39 ? "until [ -e $LOGREEL_RUN.go ]; do sleep 0.05; done; echo 39" : `sleep 0.16; echo ${i}`;
      return `[[step]]\nid = "s${i}"\n${needs}effect = "read"\nrun = "${run}"\n`;
    }).join(""),
};

export const letGo = (place, run) => place.write(`specs/${run}.go`, "");

export const APPROVAL = {
  "specs/release.toml": `name = "release"
[[step]]
id = "draft"
run = "echo notes"
[[step]]
id = "approve"
needs = ["draft"]
wait = "approval"
prompt = "Publish version {{ input }}?"
[[step]]
id = "publish"
needs = ["approve"]
effect = "write"
run = "echo published >> published; echo published"
`,
};

export const LONG = {
  "specs/long.toml": `name = "long"
[[step]]
id = "sleep"
run = "sleep 60"
`,
};

/** Everything that text can do to a page. */
export const HOSTILE_TEXT =
  `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>` +
  ` \u001b[31mred\u001b[0m \u202Egnp.exe\u202C zero\u200Bwidth \u2066iso\u2069 Z\u0335\u0321\u0322a\u0338lgo "quotes' &amp;`;

export const HOSTILE = {
  "hostile.txt": `${HOSTILE_TEXT}\n`,
  "specs/hostile.toml": `name = "hostile<b>bold</b>"
[[step]]
id = "say"
run = "cat ../hostile.txt"
[[step]]
id = "megabyte"
run = "head -c 1000000 /dev/zero | tr '\\\\0' 'x'"
[[step]]
id = "ask"
needs = ["say", "megabyte"]
wait = "approval"
prompt = "{{ steps.say.output }}"
`,
};

export function writeAll(place, ...sets) {
  for (const set of sets) for (const [path, text] of Object.entries(set)) place.write(path, text);
}

/** One for each thing that a person can be asked or can do. */
export const ACTS = {
  "specs/poor.toml": `name = "poor"
model = "scripted/writer.jsonl"
tools = ["fs.write", "fs.read"]
[budget]
tokens = 500
[policy]
ask = ["fs.write"]
`,
  "specs/signal.toml": `name = "signal"
[[step]]
id = "go"
wait = "signal"
name = "go"
`,
  "specs/doubt.toml": `name = "doubt"
[[step]]
id = "pay"
effect = "write"
run = "sleep 30; echo paid"
`,
  "specs/writes.toml": `name = "writes"
[[step]]
id = "pay"
effect = "write"
run = "echo paid"
[[step]]
id = "ship"
needs = ["pay"]
effect = "write"
run = "echo lost >&2; exit 1"
`,
  "specs/mend.toml": `name = "mend"
[[step]]
id = "first"
run = "echo first"
[[step]]
id = "second"
needs = ["first"]
run = "test -e ../mended && echo second"
`,
};
