// The worker in which Python runs. What it says is the session's word: the other side believes none of it.
import { boot, install, lockOf } from "./boot.mjs";
import { boundPipes, MemoryBound, mountFolder, silenceTerminals } from "./bounds.mjs";
import { FileTools } from "./files.mjs";
import { readSnapshot } from "./snapshot.mjs";
import { Output } from "./stream.mjs";

const MOST_LATE = 64 << 10;
const COLLECT_BYTES = 64 << 20;
const post = self.postMessage.bind(self);
const quiet = { messageCallback() {}, errorCallback() {} };

let python, kernel, lock, fileTools, interrupt;
let current = null; // the cell that runs: its id, and its Output
let late = []; // what came while none ran
let lateBytes = 0;
let heldBytes = 0; // after the last collection

// Written for setStdout({write}): the batched handler keeps text without a newline until later.
function writer(which) {
  return (bytes) => {
    if (current) {
      if (current.output.write(which, bytes)) post({ is: "printed", id: current.id });
    } else if (lateBytes < MOST_LATE) {
      const kept = bytes.slice(0, MOST_LATE - lateBytes); // a copy: these bytes are a view of wasm's memory
      late.push(kept);
      lateBytes += kept.length;
    }
    return bytes.length;
  };
}

function takeLate() {
  const decoder = new TextDecoder();
  const text = late.map((bytes) => decoder.decode(bytes, { stream: true })).join("") + decoder.decode();
  late = [];
  lateBytes = 0;
  return text;
}

// Gives the streams to the next cell. Descriptors 0 to 2 are opened anew, whatever an earlier cell did to them.
function openStreams(stdin) {
  let rest = new TextEncoder().encode(stdin ?? "");
  const read = (into) => {
    const piece = rest.subarray(0, into.length);
    into.set(piece);
    rest = rest.subarray(piece.length);
    return piece.length;
  };
  python.setStdin({ read });
}

async function started(settings) {
  lock = lockOf(settings);
  let snapshot = await readSnapshot(settings);
  let cold = snapshot === null;
  try {
    python = await boot(settings, lock, snapshot);
  } catch (error) {
    if (cold) throw error;
    console.error(`the snapshot does not fit: ${error.message}`);
    cold = true;
    python = await boot(settings, lock, null);
  }
  if (cold) install(python, false);
  python._api.config._loadSnapshot = snapshot = undefined;
  globalThis.gc?.(); // lets the snapshot's 31 MB go
  return cold;
}

async function setUp({ settings, interruptBuffer }) {
  const cold = await started(settings);
  interrupt = new Uint8Array(interruptBuffer);
  python.setStdout({ write: writer(0), isatty: false });
  python.setStderr({ write: writer(1), isatty: false });
  python.FS.mkdirTree("/files");
  python.FS.mkdirTree("/home/user");
  boundPipes(python);
  silenceTerminals(python);
  const memory = new MemoryBound(python, settings.filesBytes);
  if (settings.files) mountFolder(python, settings.files, settings.filesBytes);
  const ours = python.pyimport("_interpreterd");
  kernel = ours.kernel;
  fileTools = new FileTools(python, settings.filesBytes, memory, lock, quiet);
  kernel.set_up(JSON.stringify(importsOf(lock)), loadInCell);
  python.setInterruptBuffer(interrupt);
  post({
    is: "ready",
    cold,
    pyodide: python.version,
    python: lock.info?.python ?? "",
    packages: Object.fromEntries(Object.values(lock.packages).map((about) => [about.name, about.version])),
  });
}

// From the name that programs import to the package that holds it.
function importsOf({ packages }) {
  return Object.fromEntries(
    Object.values(packages).flatMap(({ name, imports }) => imports.map((found) => [found, name])),
  );
}

// What a cell imports without naming it itself. Its time is not the cell's.
async function loadInCell(name) {
  const began = performance.now();
  const loaded = await fileTools.loadOne(name);
  current?.packages.push(...loaded);
  if (current) current.loadMs += performance.now() - began;
}

async function run({ id, cell, buffer, limit }) {
  interrupt[0] = 0; // what was meant for a task of an earlier cell
  post({ is: "begun", id });
  try {
    const packages = await fileTools.loadFor(cell.code);
    openStreams(cell.stdin);
    kernel.flush(); // what an earlier cell could not print, or a task of it has not yet
    const output = new Output(buffer, limit);
    const came = takeLate();
    interrupt[0] = 0;
    const cellNow = (current = { id, output, packages, loadMs: 0 });
    post({ is: "started", id });
    // a promise of the sandbox's own stack (JSPI): else time.sleep would block the worker and asyncio.run fail
    const outcome = await kernel.run.callPromising(JSON.stringify(cell));
    current = null;
    post({ is: "done", id, outcome, packages, late: came, loadMs: cellNow.loadMs });
    collect();
  } catch (error) {
    current = null;
    // the kernel catches all that programs can raise: what comes out of it means a broken interpreter
    post({ is: "broken", id, why: reasonOf(error).slice(-4000) });
  }
}

// What files and pipes held lies outside of V8's heap, which it is slow to clean up.
function collect() {
  if (Deno.memoryUsage().external < heldBytes + COLLECT_BYTES) return;
  globalThis.gc?.();
  heldBytes = Deno.memoryUsage().external;
}

function reasonOf(error) {
  return error?.errno === undefined ? String(error?.message ?? error) : `error ${error.errno} of its files`;
}

function cancel({ id }) {
  interrupt[0] = 0; // before Python runs here: it would be struck itself
  if (current?.id !== id) return;
  try {
    kernel.cancel();
  } catch {
    // nothing to cancel
  }
}

async function operate({ id, tool, given }) {
  try {
    const answer = tool === "reset" ? kernel.reset() : await fileTools[tool](given);
    post({ is: "answer", id, answer: answer ?? {} });
  } catch (error) {
    post({ is: "answer", id, error: fileTools.reason(error) });
  }
}

async function begin(told) {
  try {
    await setUp(told);
  } catch (error) {
    post({ is: "failed", why: reasonOf(error).slice(0, 4000) });
  }
}

const DUTIES = { setUp: begin, run, cancel, operate };
self.onmessage = ({ data }) => DUTIES[data.do](data);
