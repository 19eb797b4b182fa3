// The API as the page calls it: one place for tokens, errors and idempotency keys.

import { signal } from "@preact/signals";
import type { Json, LogEvent, Page, Run } from "./model/types";

/** What the server refused, in its own words (RFC 9457). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    detail: string,
    readonly hint: string | null,
  ) {
    super(detail);
  }
}

/** The server could not be reached. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

const TOKEN = "logreel.token";

function stored(): string | null {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

/** For this tab only, and never in an address. */
export const token = signal<string | null>(stored());
/** The server wants a token, or another one. */
export const tokenWanted = signal(false);

export function setToken(value: string): void {
  token.value = value;
  tokenWanted.value = false;
  try {
    sessionStorage.setItem(TOKEN, value);
  } catch {
    // Then it is kept until the page is left.
  }
}

/** How far the server's clock is ahead of ours, when that can be seen. */
export const skew = signal(0);
const SKEW_MIN_MS = 2500;

/** The header has whole seconds. */
function compareClocks(response: Response): void {
  const date = Date.parse(response.headers.get("Date") ?? "");
  if (Number.isNaN(date)) return;
  const ahead = date + 500 - Date.now();
  const seen = Math.abs(ahead) > SKEW_MIN_MS ? ahead : 0;
  if (Math.abs(seen - skew.value) > SKEW_MIN_MS) skew.value = seen;
}

/** Below whatever path the page was loaded from. */
export const address = (path: string): string => new URL(`v1/${path}`, document.baseURI).href;

export { segment } from "./api-path";
import { segment } from "./api-path";

export function headers(more: { [name: string]: string } = {}): { [name: string]: string } {
  return token.value === null ? more : { Authorization: `Bearer ${token.value}`, ...more };
}

export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address(path), {
      credentials: "same-origin",
      ...init,
      headers: headers(init.headers as { [name: string]: string } | undefined),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  compareClocks(response);
  if (response.status === 401) tokenWanted.value = true;
  if (!response.ok && response.status !== 304) throw await problem(response);
  return response;
}

export async function problem(response: Response): Promise<Problem> {
  const said = (await response.json().catch(() => null)) as { [key: string]: Json } | null;
  const text = (key: string): string | null => (typeof said?.[key] === "string" ? said[key] : null);
  const detail = text("detail") ?? text("title") ?? `The server answered ${response.status}.`;
  return new Problem(response.status, text("kind") ?? "unknown", detail, text("hint"));
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const accept = { headers: { Accept: "application/json" } };
  const response = await send(path, signal === undefined ? accept : { ...accept, signal });
  return (await response.json()) as T;
}

/** One intention has one key, however often it is sent. */
export function intention(): string {
  // `crypto.randomUUID` is missing where the page is not served from a secure origin.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function post<T>(path: string, body: Json, key: string): Promise<T> {
  const response = await send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json", "Idempotency-Key": key },
    body: JSON.stringify(body),
  });
  return (await response.json()) as T;
}

export interface Filter {
  status?: string;
  agent?: string;
  session?: string;
  label?: string;
  search?: string;
}

export function listRuns(filter: Filter, limit: number, cursor: string | null): Promise<Page<Run>> {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(filter)) {
    if (value === undefined || value === "") continue;
    query.set(key, value);
  }
  query.set("limit", String(limit));
  if (cursor !== null) query.set("cursor", cursor);
  return getJson(`runs?${query}`);
}

/** The steps that a run's log does not speak of yet. */
export async function pendingSteps(id: string): Promise<string[]> {
  const run = await getJson<Run>(`runs/${segment(id)}`);
  return (run.steps ?? []).filter((step) => step.status === "pending").map((step) => step.id);
}

export interface Tagged {
  run: Run;
  etag: string | null;
}

/** The run, or null when it is as it was. */
export async function getRun(id: string, etag: string | null): Promise<Tagged | null> {
  const known = etag === null ? {} : { "If-None-Match": etag };
  const response = await send(`runs/${segment(id)}?steps=false`, { headers: { Accept: "application/json", ...known } });
  if (response.status === 304) return null;
  return { run: (await response.json()) as Run, etag: response.headers.get("ETag") };
}

export function getEvents(id: string, from: number, limit: number, signal?: AbortSignal): Promise<Page<LogEvent>> {
  return getJson(`runs/${segment(id)}/events?from=${from}&limit=${limit}`, signal);
}

/** A blob's bytes as text. */
export async function getBlob(digest: string): Promise<string> {
  const response = await send(`blobs/${segment(digest)}`);
  return response.text();
}
