// Starts Pyodide: cold or from a snapshot, with the packages of the store, and with our Python inside.

const GUEST = new URL("./guest/", import.meta.url);
const MODULES = [
  "place",
  "display",
  "figures",
  "errors",
  "streams",
  "alarm",
  "finishing",
  "packages",
  "taming",
  "kernel",
];

// what programs see of our process: without `_` they would see this server's path in it
const ENVIRONMENT = {
  HOME: "/home/user",
  PATH: "/usr/bin",
  LANG: "C.UTF-8",
  MPLBACKEND: "agg",
  TZ: "UTC",
  _: "python",
};

const guest = (name) => Deno.readTextFileSync(new URL(`${name}.py`, GUEST));

// A narrow set of JavaScript's names for `import js`; the rest is invisible by that road.
function visibleNames() {
  const names = Object.create(null);
  for (const name of ["setTimeout", "clearTimeout", "setInterval", "clearInterval"]) {
    names[name] = globalThis[name];
  }
  return names;
}

// The lock of the store, without what the store does not hold: an absent package fails at once,
// instead of being fetched.
export function lockOf({ pyodide, packages }) {
  const lock = JSON.parse(Deno.readTextFileSync(`${packages ?? pyodide}/pyodide-lock.json`));
  const held = new Set();
  if (packages) { for (const entry of Deno.readDirSync(packages)) held.add(entry.name); }
  const kept = Object.entries(lock.packages).filter(([, about]) => held.has(about.file_name));
  return { ...lock, packages: Object.fromEntries(kept) };
}

// Gives Pyodide. `snapshot` is what makeMemorySnapshot gave, or null; `more` are options of loadPyodide.
export async function boot(settings, lock, snapshot, more = {}) {
  const { loadPyodide } = await import(`file://${settings.pyodide}/pyodide.mjs`);
  const options = {
    indexURL: settings.pyodide,
    packageBaseUrl: settings.packages ?? settings.pyodide,
    lockFileContents: JSON.stringify(lock),
    jsglobals: visibleNames(),
    env: { ...ENVIRONMENT },
    stdin: () => null,
    stdout: () => {},
    stderr: () => {},
    ...more,
  };
  if (snapshot) {
    options._loadSnapshot = snapshot;
    options.createPyodideModule = await growing(settings, snapshot);
  }
  return await loadPyodide(options);
}

// Pyodide copies a snapshot into the heap without growing it first (pyodide issue 6254):
// "offset is out of bounds".
async function growing(settings, snapshot) {
  const { default: create } = await import(`file://${settings.pyodide}/pyodide.asm.mjs`);
  const need = heapBytes(snapshot);
  return async (given) => {
    const module = await create(given);
    if (need > module.HEAP8.length) module.growMemory(need);
    return module;
  };
}

// A number of its own: a closure over the snapshot would hold its 31 MB for ever.
function heapBytes(snapshot) {
  return snapshot.length - new Uint32Array(snapshot.buffer, snapshot.byteOffset, 2)[1];
}

// Lays our Python into a fresh interpreter. A snapshot holds it already.
export function install(python, preload) {
  const names = python.globals.get("dict")();
  try {
    if (preload) python.runPython(guest("preload"), { globals: names });
    names.set("SOURCES", JSON.stringify(Object.fromEntries(MODULES.map((name) => [name, guest(name)]))));
    python.runPython(guest("boot"), { globals: names });
  } finally {
    names.destroy();
  }
}

// What a snapshot was made from: another version of ours or of Pyodide must not meet it.
export async function fingerprint({ pyodide }) {
  const parts = [...MODULES, "boot", "preload"].map(guest);
  parts.push(
    Deno.readTextFileSync(new URL(import.meta.url)),
    JSON.stringify(lockOf({ pyodide, packages: null }).info),
  );
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(parts.join("\0")));
  return new TextEncoder().encode(new Uint8Array(digest).toHex());
}
