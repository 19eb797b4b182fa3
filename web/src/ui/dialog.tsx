// Questions before something happens: the native dialog, which keeps the focus and knows Escape.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { intention, token } from "../api";
import { curl, type Command } from "../commands";
import { Line, Refusal } from "./text";
import { copy, told } from "./toast";

export function Dialog(props: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
  /** It cannot be left without an answer. */
  stays?: boolean;
}) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = box.current;
    if (dialog !== null && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={box}
      class={props.wide ? "wide" : ""}
      aria-label={props.title}
      onClose={() => {
        // Some browsers let Escape through when it is pressed twice.
        if (props.stays && box.current?.isConnected) box.current.showModal();
        else if (!props.stays) props.onClose();
      }}
      onCancel={(event) => {
        if (props.stays) event.preventDefault();
      }}
      onClick={(event) => {
        if (event.target === box.current) props.onClose();
      }}
    >
      <div class="dialog-body">
        <header>
          <h2>
            <Line value={props.title} max={120} />
          </h2>
          {props.stays ? null : (
            <button type="button" class="icon" aria-label="Close" onClick={props.onClose}>
              ×
            </button>
          )}
        </header>
        {props.children}
      </div>
    </dialog>
  );
}

interface AskProps {
  title: string;
  /** What it does; what cannot be undone says so. */
  children?: ComponentChildren;
  verb: string;
  /** What the other button says. */
  keep?: string;
  danger?: boolean;
  /** Null when what was entered does not make a command yet. */
  command: () => Command | null;
  send: (command: Command, key: string) => Promise<void>;
  onClose: () => void;
}

/** Asks, sends once per intention, and says what was refused and why. */
export function Ask(props: AskProps) {
  // The same sent again, after a lost connection, has the same key; what was changed meanwhile has another.
  const [keys] = useState(() => new Map<string, string>());
  const [sending, setSending] = useState(false);
  const [refused, setRefused] = useState<{ title: string; detail: string | null } | null>(null);
  const command = props.command();
  const what = JSON.stringify([command?.path, command?.body]);
  const key = keys.get(what) ?? intention();
  keys.set(what, key);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (command === null || sending) return;
    setSending(true);
    setRefused(null);
    try {
      await props.send(command, key);
      props.onClose();
    } catch (error) {
      setRefused(told(error));
      setSending(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {props.children}
        {refused !== null && <Refusal {...refused} />}
        <footer>
          {command !== null && <CopyAs command={command} commandKey={key} />}
          <span class="grow" />
          <button type="button" onClick={props.onClose}>
            {props.keep ?? "Keep as it is"}
          </button>
          <button type="submit" class={props.danger ? "danger" : "primary"} disabled={command === null || sending}>
            {sending ? "Sending…" : props.verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

export function CopyAs(props: { command: Command; commandKey: string }) {
  const { command } = props;
  const origin = new URL(".", document.baseURI).href;
  return (
    <span class="copy-as">
      {command.cli !== null && (
        <button type="button" class="link" onClick={() => void copy(command.cli ?? "", "the command line")}>
          Copy as CLI
        </button>
      )}
      <button
        type="button"
        class="link"
        onClick={() => void copy(curl(origin, command, props.commandKey, token.value !== null), "the curl command")}
      >
        Copy as curl
      </button>
    </span>
  );
}
