/** A part of a path, whatever is in it. */
export const segment = (part: string): string => encodeURIComponent(part);
