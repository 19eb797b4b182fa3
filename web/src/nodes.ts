// Nodes of conversations that were read, the latest few hundred, whichever run they were read for.

import type { Json } from "./model/types";

const NODES_MAX = 300;

export const nodes = new Map<string, Json>();

export function keepNode(digest: string, message: Json): void {
  nodes.set(digest, message);
  if (nodes.size > NODES_MAX) nodes.delete(nodes.keys().next().value as string);
}
