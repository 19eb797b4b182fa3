// RFC 6902 on immutable documents: what a patch does not touch is shared with the document before.
// And what differs between two documents, by JSON pointer.

import type { Json } from "./types";

export class PatchError extends Error {}

type Dict = { [key: string]: Json };
const isDict = (value: Json | undefined): value is Dict =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function parsePointer(pointer: string): string[] {
  if (pointer === "") return [];
  if (!pointer.startsWith("/")) throw new PatchError(`no JSON pointer: ${pointer}`);
  return pointer
    .slice(1)
    .split("/")
    .map((part) => part.replace(/~1/g, "/").replace(/~0/g, "~"));
}

export const pointerPart = (key: string): string => key.replace(/~/g, "~0").replace(/\//g, "~1");

export function applyPatch(document: Json, patch: Json): Json {
  if (!Array.isArray(patch)) throw new PatchError("a patch is a list of operations");
  let now = document;
  for (const operation of patch) {
    if (!isDict(operation)) throw new PatchError("an operation is an object");
    now = applyOperation(now, operation);
  }
  return now;
}

function applyOperation(document: Json, operation: Dict): Json {
  const path = parsePointer(String(operation.path ?? ""));
  const value = operation.value ?? null;
  switch (operation.op) {
    case "add":
      return change(document, path, () => value, true);
    case "replace":
      get(document, path);
      return change(document, path, () => value, false);
    case "remove":
      return remove(document, path);
    case "move": {
      const from = parsePointer(String(operation.from ?? ""));
      const moved = get(document, from);
      return change(remove(document, from), path, () => moved, true);
    }
    case "copy": {
      const copied = get(document, parsePointer(String(operation.from ?? "")));
      return change(document, path, () => copied, true);
    }
    case "test":
      if (!equal(get(document, path), value)) throw new PatchError(`test failed at ${operation.path}`);
      return document;
    default:
      throw new PatchError(`unknown operation ${String(operation.op)}`);
  }
}

export function get(document: Json, path: readonly string[]): Json {
  let at: Json | undefined = document;
  for (const part of path) {
    if (Array.isArray(at)) at = at[index(part, at.length - 1)];
    else if (isDict(at) && Object.hasOwn(at, part)) at = at[part];
    else at = undefined;
    if (at === undefined) throw new PatchError(`nothing at /${path.map(pointerPart).join("/")}`);
  }
  return at;
}

function index(part: string, last: number): number {
  if (!/^(0|[1-9][0-9]*)$/.test(part)) throw new PatchError(`no index: ${part}`);
  const place = Number(part);
  if (place > last) throw new PatchError(`index ${part} is past the end`);
  return place;
}

/** With one member set; names of members are data, so that `__proto__` is one like any other. */
function withMember(dict: Dict, key: string, value: Json): Dict {
  const copy = { ...dict };
  Object.defineProperty(copy, key, { value, enumerable: true, configurable: true, writable: true });
  return copy;
}

function change(at: Json, path: readonly string[], value: (old: Json) => Json, insert: boolean): Json {
  const [part, ...rest] = path;
  if (part === undefined) return value(at);
  if (Array.isArray(at)) {
    const copy = at.slice();
    if (rest.length > 0) {
      const place = index(part, at.length - 1);
      copy[place] = change(at[place] as Json, rest, value, insert);
    } else if (insert) {
      copy.splice(part === "-" ? at.length : index(part, at.length), 0, value(null));
    } else {
      const place = index(part, at.length - 1);
      copy[place] = value(at[place] as Json);
    }
    return copy;
  }
  if (!isDict(at)) throw new PatchError(`no place for ${part}`);
  if (rest.length === 0) return withMember(at, part, value(null));
  if (!Object.hasOwn(at, part)) throw new PatchError(`nothing at ${part}`);
  return withMember(at, part, change(at[part] as Json, rest, value, insert));
}

function remove(at: Json, path: readonly string[]): Json {
  const [part, ...rest] = path;
  if (part === undefined) return null;
  if (Array.isArray(at)) {
    const place = index(part, at.length - 1);
    const copy = at.slice();
    if (rest.length === 0) copy.splice(place, 1);
    else copy[place] = remove(at[place] as Json, rest);
    return copy;
  }
  if (!isDict(at) || !Object.hasOwn(at, part)) throw new PatchError(`nothing at ${part}`);
  if (rest.length > 0) return withMember(at, part, remove(at[part] as Json, rest));
  const copy = { ...at };
  delete copy[part];
  return copy;
}

export function equal(a: Json, b: Json): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b))
    return a.length === b.length && a.every((value, i) => equal(value, b[i] as Json));
  if (isDict(a) && isDict(b)) {
    const keys = Object.keys(a);
    return (
      keys.length === Object.keys(b).length &&
      keys.every((key) => Object.hasOwn(b, key) && equal(a[key] as Json, b[key] as Json))
    );
  }
  return false;
}

export type Difference =
  | { pointer: string; what: "added"; after: Json }
  | { pointer: string; what: "removed"; before: Json }
  | { pointer: string; what: "changed"; before: Json; after: Json };

/** What differs, absent told from null. Shared parts are not looked into; at most `max` are told. */
export function difference(before: Json, after: Json, max = 500): Difference[] {
  const found: Difference[] = [];
  const visit = (a: Json, b: Json, pointer: string): void => {
    if (a === b || found.length >= max) return;
    if (Array.isArray(a) && Array.isArray(b)) {
      for (let i = 0; i < Math.max(a.length, b.length) && found.length < max; i += 1)
        member(a[i], b[i], `${pointer}/${i}`);
      return;
    }
    if (isDict(a) && isDict(b)) {
      for (const key of Object.keys(a))
        member(a[key], Object.hasOwn(b, key) ? b[key] : undefined, `${pointer}/${pointerPart(key)}`);
      for (const key of Object.keys(b))
        if (!Object.hasOwn(a, key)) member(undefined, b[key], `${pointer}/${pointerPart(key)}`);
      return;
    }
    if (!equal(a, b)) found.push({ pointer, what: "changed", before: a, after: b });
  };
  const member = (a: Json | undefined, b: Json | undefined, pointer: string): void => {
    if (found.length >= max) return;
    if (a === undefined && b !== undefined) found.push({ pointer, what: "added", after: b });
    else if (a !== undefined && b === undefined) found.push({ pointer, what: "removed", before: a });
    else if (a !== undefined && b !== undefined) visit(a, b, pointer);
  };
  visit(before, after, "");
  return found;
}
