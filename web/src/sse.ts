// Server-sent events, read from a fetch so that headers can be sent. Only the format: what an event
// means is not known here.

export interface Sent {
  id: string | null;
  event: string;
  data: string;
}

/** Takes the stream in any pieces and gives whole events, and ids that stand alone (their data is empty). */
export class SseParser {
  private rest = "";
  private id: string | null = null;
  private event = "";
  private data: string[] = [];

  push(chunk: string): Sent[] {
    const sent: Sent[] = [];
    this.rest += chunk;
    for (;;) {
      const at = this.rest.search(/[\r\n]/);
      // A \r at the very end may be half of a \r\n.
      if (at === -1 || (this.rest[at] === "\r" && at === this.rest.length - 1)) break;
      const line = this.rest.slice(0, at);
      this.rest = this.rest.slice(at + (this.rest.startsWith("\r\n", at) ? 2 : 1));
      const whole = this.line(line);
      if (whole !== null) sent.push(whole);
    }
    return sent;
  }

  private line(line: string): Sent | null {
    if (line === "") {
      const whole = { id: this.id, event: this.event || "message", data: this.data.join("\n") };
      // An id alone is a place to come back to.
      const isWorth = this.data.length > 0 || this.id !== null;
      this.id = null;
      this.event = "";
      this.data = [];
      return isWorth ? whole : null;
    }
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
    return null;
  }
}
