// The options of the command line.

const MIB = 1 << 20;

const DEFAULTS = {
  pyodide: null,
  snapshot: null,
  packages: null,
  files: null,
  out: null,
  timeoutMs: 30_000,
  maxTimeoutMs: 3_600_000,
  graceMs: 1_500,
  outputBytes: MIB,
  filesBytes: 256 * MIB,
  returnMode: "xml",
};

export function options(given) {
  const settings = { mode: "serve", ...DEFAULTS };
  for (let i = 0; i < given.length; i++) {
    if (!given[i].startsWith("--")) {
      settings.mode = given[i];
      continue;
    }
    const name = given[i].slice(2).replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());
    if (!Object.hasOwn(DEFAULTS, name) || i + 1 >= given.length) refuse(`unknown option ${given[i]}`);
    settings[name] = typeof DEFAULTS[name] === "number" ? number(given[i], given[i + 1]) : given[i + 1];
    i++;
  }
  if (!["serve", "make-snapshot"].includes(settings.mode)) refuse(`unknown command ${settings.mode}`);
  if (!["xml", "json"].includes(settings.returnMode)) refuse("--return-mode is xml or json");
  if (settings.pyodide === null) refuse("--pyodide is required");
  if (settings.mode === "make-snapshot" && settings.out === null) refuse("--out is required");
  return settings;
}

function number(name, text) {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) refuse(`${name} must be a positive integer`);
  return value;
}

function refuse(why) {
  console.error(why);
  Deno.exit(2);
}
