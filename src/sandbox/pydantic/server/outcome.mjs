// What came of a cell: Python's word for it, checked, and the object that callers get.

const MOST_OUTPUTS = 10_000;
const MOST_OUTPUT_BYTES = 16 << 20;
const MOST_TEXT = 400_000;
const DEEPEST = 50;
// what values become in the callers' memory, whatever their text takes
const MOST_PARSED_BYTES = 16 << 20;
const VALUE_BYTES = 32;
const OBJECT_BYTES = 704;

// Gives null of anything that is no outcome.
export function outcomeOf(text) {
  try {
    const told = JSON.parse(text);
    if (!Number.isInteger(told.exit_code)) return null;
    const outputs = outputsOf(told.outputs);
    return {
      exit_code: told.exit_code & 0xff,
      error: errorOf(told.error),
      ...outputs,
      cut: outputs.cut || told.cut === true,
      returned: typeof told.returned === "string" ? told.returned : null,
      state_lost: false,
      ended: null,
    };
  } catch {
    return null;
  }
}

const textOf = (value) => (typeof value === "string" ? value.slice(0, MOST_TEXT) : "");

function errorOf(error) {
  if (error === null || error === undefined) return null;
  const line = Number.isSafeInteger(error.line) && error.line > 0 ? error.line : null;
  return {
    name: textOf(error.name),
    message: textOf(error.message),
    traceback: textOf(error.traceback),
    line,
  };
}

function outputsOf(told) {
  const outputs = [];
  let left = MOST_OUTPUT_BYTES + (1 << 20); // Python counts a little otherwise
  let room = MOST_PARSED_BYTES;
  for (const { data, metadata, main } of told.slice(0, MOST_OUTPUTS)) {
    if (!isFlat(data) || !isFlat(metadata)) return { outputs, cut: true };
    left -= JSON.stringify(data).length + JSON.stringify(metadata).length;
    room -= parsedBytes(data) + parsedBytes(metadata);
    if (left < 0 || room < 0) return { outputs, cut: true };
    outputs.push({ data, metadata, main: main === true });
  }
  return { outputs, cut: told.length > MOST_OUTPUTS };
}

const isFlat = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value) && isShallow(value, 0);

function isShallow(value, depth) {
  if (value === null || typeof value !== "object") return true;
  return depth < DEEPEST && Object.values(value).every((part) => isShallow(part, depth + 1));
}

function parsedBytes(value) {
  if (value === null || typeof value !== "object") return VALUE_BYTES;
  const own = Array.isArray(value) ? VALUE_BYTES : OBJECT_BYTES;
  return Object.values(value).reduce((sum, part) => sum + parsedBytes(part), own);
}

// Of an interpreter that ended in the cell.
export function lostOutcome(why) {
  const ended = /memory/i.test(why) && !/access out of bounds/.test(why) ? "oom" : "killed";
  const message = `the interpreter ended: ${why}`.slice(0, MOST_TEXT);
  return {
    exit_code: 1,
    error: { name: ended === "oom" ? "MemoryError" : "InterpreterEnded", message, traceback: "", line: null },
    outputs: [],
    cut: false,
    returned: null,
    state_lost: true,
    ended,
  };
}

// Of a cell that was stopped before its turn came.
export function unrunOutcome() {
  return {
    exit_code: 1,
    error: null,
    outputs: [],
    cut: false,
    returned: null,
    state_lost: false,
    ended: null,
  };
}

// The object that callers get.
export function answered({ stdout, stderr, returned: _, ...outcome }) {
  return { ...outcome, stdout: encoded(stdout), stderr: encoded(stderr), files: null, files_cut: false };
}

const encoded = ({ head, tail, bytes }) => ({ head: head.toBase64(), tail: tail.toBase64(), bytes });
