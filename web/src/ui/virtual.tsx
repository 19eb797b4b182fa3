// A list of which only what is seen is laid out. Rows have one height, so that the place of row
// 100,000 is known without looking at the others.

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** Laid out beyond both edges, so that a quick scroll finds rows and not a blank. */
const MARGIN_PX = 900;

export interface VirtualProps {
  count: number;
  height: number;
  row: (index: number) => ComponentChildren;
  /** A row that must be seen. */
  reveal?: number | null;
  /** Stays at the end while the list grows, unless someone scrolled away. */
  stick?: boolean;
  onStick?: (stuck: boolean) => void;
  onEnd?: () => void;
  header?: ComponentChildren;
  overlay?: ComponentChildren;
  class?: string;
  role?: string;
  label?: string;
  scroller?: RefObject<HTMLDivElement>;
}

export function Virtual(props: VirtualProps) {
  const own = useRef<HTMLDivElement>(null);
  const box = props.scroller ?? own;
  const [window, setWindow] = useState({ top: 0, height: 800 });
  const { count, height } = props;

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const measure = (): void => {
      setWindow((old) =>
        old.top === element.scrollTop && old.height === element.clientHeight
          ? old
          : { top: element.scrollTop, height: element.clientHeight },
      );
      const atEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - height;
      props.onStick?.(atEnd);
      if (element.scrollTop + element.clientHeight > element.scrollHeight - MARGIN_PX) props.onEnd?.();
    };
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  });

  useLayoutEffect(() => {
    const element = box.current;
    if (props.stick && element !== null) element.scrollTop = element.scrollHeight;
  }, [count, props.stick]);

  useEffect(() => {
    const element = box.current;
    if (element === null || props.reveal === null || props.reveal === undefined) return;
    const header = element.querySelector<HTMLElement>(".virtual-head")?.offsetHeight ?? 0;
    const top = props.reveal * height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height + header > element.scrollTop + element.clientHeight)
      element.scrollTop = top + height + header - element.clientHeight + height;
  }, [props.reveal]);

  const first = Math.max(0, Math.floor((window.top - MARGIN_PX) / height));
  const last = Math.min(count, Math.ceil((window.top + window.height + MARGIN_PX) / height));
  const rows: ComponentChildren[] = [];
  for (let i = first; i < last; i += 1) rows.push(props.row(i));
  // The header of a grid is one of its rows; that of a tree is none of its items.
  const isTree = props.role === "tree";
  const named = { role: (props.role ?? "list") as "list", "aria-label": props.label };
  return (
    <div ref={box} class={`virtual ${props.class ?? ""}`} tabIndex={0} {...(isTree ? {} : named)}>
      {props.header !== undefined && <div class="virtual-head">{props.header}</div>}
      <div class="virtual-body" {...(isTree ? named : { role: "presentation" })} style={{ height: `${count * height}px` }}>
        {props.overlay}
        <div class="virtual-window" role="presentation" style={{ transform: `translateY(${first * height}px)` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}
