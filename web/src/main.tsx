// The page: one root, whatever is in the address.

import { render } from "preact";
import { route, startRouter } from "./route";
import { startList } from "./runs-store";
import { startWorld } from "./world";
import { Asking } from "./ui/act";
import { Inbox } from "./ui/inbox";
import { startKeys } from "./ui/keys";
import { RunPage } from "./ui/run";
import { Runs } from "./ui/runs";
import { Help, TokenAsk, TopBar } from "./ui/shell";
import { StartAsk } from "./ui/start";
import { guardText } from "./ui/text";
import { toast, Toasts } from "./ui/toast";
import "./styles.css";

function App() {
  const at = route.value;
  return (
    <>
      <TopBar />
      {at.page === "runs" && <Runs />}
      {at.page === "inbox" && <Inbox />}
      {at.page === "run" && <RunPage key={at.id} id={at.id} />}
      <Asking />
      <StartAsk />
      <Help />
      <TokenAsk />
      <Toasts />
    </>
  );
}

guardText();
startRouter();
startWorld();
startKeys();
startList(() => toast("good", "The server has another store", "Everything was read again."));
const root = document.getElementById("app");
if (root !== null) render(<App />, root);
