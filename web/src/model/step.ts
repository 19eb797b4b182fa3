// Step ids: in bodies a name, or an array; shown as `fetch`, `read[a.txt]`, `fetch/parse`.

import type { Json } from "./types";

let lastId: Json | undefined;
let lastShown = "";

/** As it is shown, and as the API names it. Whoever folds an event asks for the same one several times. */
export function shownStep(id: Json | undefined): string {
  if (typeof id === "string") return id;
  if (id === lastId) return lastShown;
  const shown = show(id);
  lastId = id;
  lastShown = shown;
  return shown;
}

function show(id: Json | undefined): string {
  if (!Array.isArray(id) || id.length === 0) return "?";
  const [first, ...rest] = id;
  if (Array.isArray(first)) {
    // [outer, inner]: a step inside a step.
    const inner = rest.map((part) => (typeof part === "string" ? part : show(part))).join("/");
    return `${show(first)}/${inner}`;
  }
  const name = typeof first === "string" ? first : JSON.stringify(first);
  if (rest.length === 0) return name;
  const keys = rest.map((part) => (typeof part === "string" ? part : JSON.stringify(part)));
  return `${name}[${keys.join(",")}]`;
}

/** The step around it, the name it shares with the items of its map, and its own place there. */
export function stepPath(id: Json | undefined): { outer: Json | null; name: string; key: string | null } {
  if (Array.isArray(id) && Array.isArray(id[0])) {
    const inner = id.length === 2 ? id[1] : id.slice(1);
    return { ...stepPath(inner), outer: id[0] };
  }
  if (Array.isArray(id) && id.length > 1) {
    const shown = shownStep(id);
    const name = typeof id[0] === "string" ? id[0] : "?";
    return { outer: null, name, key: shown.slice(name.length + 1, -1) };
  }
  return { outer: null, name: shownStep(id), key: null };
}
