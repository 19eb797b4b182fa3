// Where we are, kept in the address behind the #, so that the page works below any path and every view
// can be sent to someone else.

import { computed, signal } from "@preact/signals";

export const TABS = ["timeline", "transcript", "events", "state", "steps", "details"] as const;
export type Tab = (typeof TABS)[number];

export type Route =
  | { page: "runs"; query: URLSearchParams }
  | { page: "inbox"; query: URLSearchParams }
  | { page: "run"; id: string; tab: Tab | null; query: URLSearchParams };

const hash = signal(location.hash);

export function startRouter(): void {
  window.addEventListener("hashchange", () => {
    hash.value = location.hash;
  });
}

export const route = computed<Route>(() => parse(hash.value));

export function parse(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#/, "").split("?", 2);
  const query = new URLSearchParams(search);
  const [page, id, tab] = path.replace(/^\//, "").split("/");
  if (page === "run" && id !== undefined && id !== "") {
    const known = TABS.find((it) => it === tab) ?? null;
    return { page: "run", id: decoded(id), tab: known, query };
  }
  if (page === "inbox") return { page: "inbox", query };
  return { page: "runs", query };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // An address that someone cut: it names no run, and says so.
    return part;
  }
}

export const runPath = (id: string, tab?: Tab): string =>
  `#/run/${encodeURIComponent(id)}${tab === undefined ? "" : `/${tab}`}`;

export function go(to: string): void {
  location.hash = to;
}

/** Changes the query where we are, without a step in the history. */
export function setQuery(changes: { [key: string]: string | null }): void {
  const [path = ""] = location.hash.split("?", 1);
  const query = new URLSearchParams(route.value.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(key);
    else query.set(key, value);
  }
  const search = query.toString();
  history.replaceState(null, "", `${path === "" ? "#/runs" : path}${search === "" ? "" : `?${search}`}`);
  hash.value = location.hash;
}
