// Makes and reads the snapshot of a started interpreter's memory.
import { boot, fingerprint, install, lockOf } from "./boot.mjs";

const MARK_BYTES = 64; // the fingerprint stands at the end of the file, so that the rest need not be copied

export async function makeSnapshot(settings) {
  const bare = { ...settings, packages: null, snapshot: null };
  const python = await boot(bare, lockOf(bare), null, { _makeSnapshot: true });
  install(python, true);
  const memory = python.makeMemorySnapshot();
  const file = new Uint8Array(memory.length + MARK_BYTES);
  file.set(memory);
  file.set(await fingerprint(settings), memory.length);
  Deno.writeFileSync(settings.out, file);
  console.error(`snapshot of ${memory.length} bytes`);
}

// Gives null, with a warning, where there is none that fits: then the start is a cold one.
export async function readSnapshot(settings) {
  if (settings.snapshot === null) return null;
  try {
    const file = Deno.readFileSync(settings.snapshot);
    const memory = file.subarray(0, file.length - MARK_BYTES);
    const mark = new TextDecoder().decode(file.subarray(memory.length));
    if (mark === new TextDecoder().decode(await fingerprint(settings))) return memory;
    console.error("the snapshot was made for another build: starting without it");
  } catch (error) {
    console.error(`the snapshot cannot be read: ${error.message}`);
  }
  return null;
}
