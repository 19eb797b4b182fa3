// The waterfall: rows of bars on an axis where pauses are folded. Only rows in sight are laid out.

import { useMemo, useRef, useState } from "preact/hooks";
import { Axis } from "../model/axis";
import { extent, stateOf, type Bar, type Row } from "../model/spans";
import { duration, shortId } from "../model/time";
import type { OpenRun } from "../open-run";
import { runPath } from "../route";
import { serverNow } from "../world";
import { useKeys } from "./keys";
import { Empty } from "./runs";
import { Line } from "./text";
import { Virtual } from "./virtual";

const ROW = 26;

interface View {
  from: number;
  to: number;
}

export function Waterfall(props: { open: OpenRun; selected: number | null; select: (seq: number | null) => void }) {
  const { open, selected, select } = props;
  const version = open.version.value;
  const { spans } = open.model;
  const [folds, setFolds] = useState(0);
  const rows = useMemo(() => spans.rows(), [version, folds, spans]);
  const live = !spans.ended && open.link.value.is === "live";
  const end = live ? Math.max(spans.last, serverNow()) : spans.last;
  const gaps = live && spans.idle && end - spans.last > 1000 ? [...spans.gaps, { start: spans.last, end }] : spans.gaps;
  const axis = useMemo(() => new Axis(spans.start, Math.max(end, spans.start + 1), gaps), [version, end]);
  const [zoom, setZoom] = useState<View | null>(null);
  const view = zoom ?? { from: 0, to: axis.length };
  const found = useMemo(() => (selected === null ? null : spans.find(selected)), [selected, version]);
  const foundAt = found === null ? -1 : rows.indexOf(found);
  const scaleBy = (factor: number, around = (view.from + view.to) / 2): void => {
    const length = Math.min(axis.length, Math.max((view.to - view.from) * factor, axis.length / 5000));
    if (length >= axis.length) return setZoom(null);
    const part = (around - view.from) / (view.to - view.from);
    const from = Math.max(0, Math.min(axis.length - length, around - part * length));
    setZoom({ from, to: from + length });
  };
  const pan = (by: number): void => {
    if (zoom === null) return;
    const length = view.to - view.from;
    const from = Math.max(0, Math.min(axis.length - length, view.from + by * length));
    setZoom({ from, to: from + length });
  };
  const move = (by: number): void => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, foundAt + by))];
    if (next !== undefined) select(next.from);
  };
  const fold = (row: Row): void => {
    row.open = !row.open;
    setFolds(folds + 1);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    "+": () => scaleBy(0.5),
    "=": () => scaleBy(0.5),
    "-": () => scaleBy(2),
    "0": () => setZoom(null),
    h: () => pan(-0.25),
    l: () => pan(0.25),
    " ": () => {
      if (found !== null && found.children.length > 0) fold(found);
    },
  });
  if (rows.length === 0) {
    const empty = open.model.seq > 0 && spans.ended;
    return <Empty title={empty ? "Nothing ran" : "Nothing runs yet"} detail={empty ? "The run ended before anything began." : ""} />;
  }
  return (
    <div
      class="waterfall"
      onWheel={(event) => {
        if (!event.ctrlKey && !event.metaKey) {
          if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
          return;
        }
        event.preventDefault();
        const track = (event.currentTarget as HTMLElement).querySelector(".ruler")?.getBoundingClientRect();
        if (track === undefined) return;
        const part = Math.min(1, Math.max(0, (event.clientX - track.left) / track.width));
        scaleBy(event.deltaY > 0 ? 1.25 : 0.8, view.from + part * (view.to - view.from));
      }}
    >
      <Virtual
        class="waterfall-rows"
        role="tree"
        label="Timeline"
        count={rows.length}
        height={ROW}
        reveal={foundAt >= 0 ? foundAt : null}
        header={
          <div class="wf-head">
            <span class="wf-label">
              <span class="zoom" role="group" aria-label="Zoom">
                <button type="button" class="icon" aria-label="Zoom in" onClick={() => scaleBy(0.5)}>
                  +
                </button>
                <button type="button" class="icon" aria-label="Zoom out" onClick={() => scaleBy(2)} disabled={zoom === null}>
                  −
                </button>
                <button type="button" class="link" onClick={() => setZoom(null)} disabled={zoom === null}>
                  fit
                </button>
              </span>
            </span>
            <Ruler axis={axis} view={view} open={open} zoomTo={setZoom} select={select} />
          </div>
        }
        overlay={<Folds axis={axis} view={view} />}
        row={(i) => {
          const row = rows[i];
          if (row === undefined) return null;
          return (
            <WaterfallRow key={row.from + row.name} row={row} axis={axis} view={view} end={end} selected={row === found} select={select} fold={fold} />
          );
        }}
      />
    </div>
  );
}

const place = (u: number, view: View): number => ((u - view.from) / (view.to - view.from)) * 100;

function Ruler(props: { axis: Axis; view: View; open: OpenRun; zoomTo: (view: View | null) => void; select: (seq: number) => void }) {
  const { axis, view, open } = props;
  const box = useRef<HTMLDivElement>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const partAt = (event: PointerEvent): number => {
    const rect = box.current?.getBoundingClientRect();
    return rect === undefined ? 0 : Math.min(1, Math.max(0, (event.clientX - rect.left) / rect.width));
  };
  const ticks = axis.ticks(view.from, view.to, window.innerWidth < 640 ? 3 : 8);
  return (
    <div
      ref={box}
      class="ruler"
      title="Drag to zoom in, double click to fit"
      onDblClick={() => props.zoomTo(null)}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        setDrag({ from: partAt(event), to: partAt(event) });
      }}
      onPointerMove={(event) => {
        if (drag !== null) setDrag({ ...drag, to: partAt(event) });
      }}
      onPointerUp={() => {
        if (drag !== null && Math.abs(drag.to - drag.from) > 0.01) {
          const length = view.to - view.from;
          const low = view.from + Math.min(drag.from, drag.to) * length;
          const high = view.from + Math.max(drag.from, drag.to) * length;
          props.zoomTo({ from: low, to: high });
        }
        setDrag(null);
      }}
    >
      {ticks.filter((tick) => place(tick.u, view) < (window.innerWidth < 640 ? 86 : 97)).map((tick) => (
        <span key={tick.since} class="tick" style={{ left: `${place(tick.u, view)}%` }}>
          {tick.since === 0 ? "0" : duration(tick.since)}
        </span>
      ))}
      {open.model.spans.marks.map((mark) => {
        const left = place(axis.at(mark.at), view);
        if (left < 0 || left > 100) return null;
        return (
          <button
            key={mark.seq}
            type="button"
            class={`mark ${mark.kind.split(".")[0] ?? ""}`}
            style={{ left: `${left}%` }}
            title={mark.kind}
            aria-label={`${mark.kind}, event ${mark.seq}`}
            tabIndex={-1}
            onPointerDown={(event) => event.stopPropagation()}
            onClick={() => props.select(mark.seq)}
          />
        );
      })}
      {drag !== null && (
        <span
          class="brush"
          style={{ left: `${Math.min(drag.from, drag.to) * 100}%`, width: `${Math.abs(drag.to - drag.from) * 100}%` }}
        />
      )}
    </div>
  );
}

function Folds(props: { axis: Axis; view: View }) {
  const { axis, view } = props;
  return (
    <div class="wf-folds" aria-hidden="true">
      {axis.folds.map((fold) => {
        const left = place(fold.u0, view);
        const width = place(fold.u1, view) - left;
        if (left > 100 || left + width < 0) return null;
        return (
          <span key={fold.t0} class="fold" style={{ left: `${left}%`, width: `${width}%` }} title={`${duration(fold.t1 - fold.t0)} without work`}>
            <span>
              <span>{duration(fold.t1 - fold.t0)}</span>
            </span>
          </span>
        );
      })}
    </div>
  );
}

function WaterfallRow(props: {
  row: Row;
  axis: Axis;
  view: View;
  end: number;
  selected: boolean;
  select: (seq: number | null) => void;
  fold: (row: Row) => void;
}) {
  const { row, axis, view, end } = props;
  const state = stateOf(row);
  const range = extent(row);
  const took = (range.end ?? end) - range.start;
  const foldable = row.children.length > 0;
  return (
    <div
      class={`wf-row ${row.kind} ${props.selected ? "selected" : ""}`}
      role="treeitem"
      aria-level={row.depth + 1}
      aria-selected={props.selected}
      {...(foldable ? { "aria-expanded": row.open } : {})}
      onClick={() => props.select(row.from)}
    >
      <span class="wf-label" style={{ paddingLeft: `${8 + row.depth * 14}px` }}>
        {foldable ? (
          <button
            type="button"
            class="fold-button"
            aria-label={row.open ? "Fold" : "Unfold"}
            tabIndex={-1}
            onClick={(event) => {
              event.stopPropagation();
              props.fold(row);
            }}
          >
            {row.open ? "▾" : "▸"}
          </button>
        ) : (
          <span class={`wf-icon ${state}`} aria-hidden="true" />
        )}
        <Line value={row.name} max={80} class={row.kind === "phase" ? "strong" : ""} />
        {row.kind === "group" && <span class="dim">{row.children.length}</span>}
        {row.kind === "child" && row.ref !== "" && (
          <a class="mono" href={runPath(row.ref)} onClick={(event) => event.stopPropagation()}>
            {shortId(row.ref)}
          </a>
        )}
        <span class="wf-took">{duration(took)}</span>
      </span>
      <span class="wf-track">
        {row.kind === "group" ? (
          <Block bar={{ start: range.start, end: range.end, state, idle: false, epoch: 0 }} axis={axis} view={view} end={end} kind="group" />
        ) : (
          row.bars.map((bar, i) => (
            <Block key={i} bar={bar} axis={axis} view={view} end={end} kind={row.kind} />
          ))
        )}
      </span>
    </div>
  );
}

function Block(props: { bar: Bar; axis: Axis; view: View; end: number; kind: string }) {
  const { bar, axis, view } = props;
  const left = place(axis.at(bar.start), view);
  const right = place(axis.at(bar.end ?? props.end), view);
  if (right < 0 || left > 100) return null;
  const from = Math.max(left, -1);
  const width = Math.min(right, 101) - from;
  const title = `${bar.state}${bar.idle ? ", waits" : ""}: ${duration((bar.end ?? props.end) - bar.start)}`;
  const classes = `bar ${props.kind} ${bar.idle ? "idle" : ""} ${bar.state} ${bar.end === null ? "open" : ""}`;
  return <span class={classes} style={{ left: `${from}%`, width: `${width}%` }} title={title} />;
}
