// An MCP server over stdio that runs Python for one session: Pyodide in a worker of Deno.
import { makeSnapshot } from "./snapshot.mjs";
import { options } from "./options.mjs";
import { Interpreter } from "./interpreter.mjs";
import { serve } from "./protocol.mjs";
import { Tools } from "./tools.mjs";

// stdout carries the protocol: nothing else in this realm may print to it
console.log =
  console.info =
  console.debug =
  console.warn =
    console.error;

const settings = options(Deno.args);
if (settings.mode === "make-snapshot") {
  await makeSnapshot(settings);
} else {
  const interpreter = new Interpreter(settings);
  interpreter.start().catch(() => {}); // each call is told why, and tries again
  await serve(new Tools(interpreter, settings));
}
