// The tools that callers see.
import { checked, filePath, SCHEMAS } from "./schemas.mjs";
import { Busy, NotStarted } from "./interpreter.mjs";
import { answered } from "./outcome.mjs";
import { CODES, RpcError } from "./protocol.mjs";
import { textOf } from "./text.mjs";

const MOST_OUTPUT_BYTES = 8 << 20;
const MOST_PIECE = 16 << 20;
const MOST_IMAGES = 16 << 20;
const MOST_LISTED = 10_000;
const IMAGES = ["image/png", "image/jpeg"];

const structured = (value, isError = false) => ({
  content: [{ type: "text", text: JSON.stringify(value) }],
  structuredContent: value,
  isError,
});
const textsOf = (list) => (Array.isArray(list) ? list.slice(0, MOST_LISTED).map(String) : []);
const failed = (text) => ({ content: [{ type: "text", text }], isError: true });

export class Tools {
  constructor(interpreter, settings) {
    this.interpreter = interpreter;
    this.settings = settings;
  }

  list() {
    return SCHEMAS;
  }

  async call(name, given, call) {
    const schema = SCHEMAS.find((tool) => tool.name === name);
    if (!schema) throw new RpcError(CODES.params, `unknown tool: ${name}`);
    const values = checked(given, schema.inputSchema);
    try {
      return await this[name](values, call);
    } catch (error) {
      if (error instanceof Busy) throw new RpcError(CODES.busy, error.message);
      if (error instanceof NotStarted) throw new RpcError(CODES.notStarted, error.message);
      throw error;
    }
  }

  async run_python_code(given, call) {
    const { timeoutMs, maxTimeoutMs, outputBytes, returnMode } = this.settings;
    const limit = Math.min(given.output_bytes ?? outputBytes, MOST_OUTPUT_BYTES);
    const asked = {
      code: given.python_code,
      globals: given.global_variables ?? {},
      session_env: given.session_env ?? null,
      env: given.env ?? {},
      stdin: given.stdin ?? null,
      limit,
      timeoutMs: Math.min(given.timeout_ms ?? timeoutMs, maxTimeoutMs),
      tell: call.tell,
    };
    const outcome = await this.interpreter.run(asked, call.began);
    const text = { type: "text", text: textOf(outcome, returnMode, limit) };
    return { content: [text, ...images(outcome)], structuredContent: answered(outcome), isError: false };
  }

  interrupt() {
    return structured({ interrupted: this.interpreter.interrupt() });
  }

  async reset_session({ hard = false }) {
    if (hard) await this.interpreter.replace();
    const done = hard ? {} : await this.interpreter.operate("reset", {});
    return done.error === undefined ? structured({ reset: hard ? "hard" : "soft" }) : failed(done.error);
  }

  async upload_file({ path, text, content_base64, append = false }) {
    const asked = { path: filePath(path), data: bytesOf(text, content_base64), append };
    return await this.operate("upload", asked, ({ size }) => ({ path: asked.path, size: Number(size) }));
  }

  async download_file({ path, offset = 0, length = 4 << 20 }) {
    const asked = { path: filePath(path), offset, length: Math.min(length, MOST_PIECE) };
    const { answer, error } = await this.interpreter.operate("download", asked);
    if (error !== undefined) return failed(error);
    const { size, data } = answer;
    if (!(data instanceof Uint8Array) || data.length > MOST_PIECE) return failed("the file cannot be read");
    const uri = `file://${encodeURI(asked.path)}`;
    const resource = { uri, mimeType: "application/octet-stream", blob: data.toBase64() };
    const eof = offset + data.length >= size;
    const structuredContent = { path: asked.path, size: Number(size), offset, length: data.length, eof };
    return { content: [{ type: "resource", resource }], structuredContent, isError: false };
  }

  async list_files({ path = "/files" }) {
    return await this.operate("list", { path: filePath(path) }, ({ files }) => {
      const listed = (Array.isArray(files) ? files : []).slice(0, MOST_LISTED);
      return {
        files: listed.map((file) => ({
          path: String(file.path),
          size: Number(file.size),
          modified: Number(file.modified),
        })),
      };
    });
  }

  async delete_file({ path }) {
    const asked = { path: filePath(path) };
    return await this.operate("remove", asked, () => asked);
  }

  async install_packages({ packages }) {
    return await this.operate("load", { names: packages }, ({ loaded, errors }) => {
      return { loaded: textsOf(loaded), errors: textsOf(errors) };
    });
  }

  async list_packages() {
    const guest = await this.interpreter.start();
    return structured(guest.about);
  }

  async operate(tool, given, shape) {
    const { answer, error } = await this.interpreter.operate(tool, given);
    if (error !== undefined) return failed(error);
    const value = shape(answer);
    return structured(value, value.errors?.length > 0);
  }
}

function bytesOf(text, base64) {
  if (text !== undefined) return new TextEncoder().encode(text);
  if (base64 === undefined) throw new RpcError(CODES.params, "content_base64 or text is required");
  try {
    return Uint8Array.fromBase64(base64);
  } catch {
    throw new RpcError(CODES.params, "content_base64 is not base64");
  }
}

// Pictures, once more as MCP's image blocks.
function images({ outputs }) {
  const blocks = [];
  let left = MOST_IMAGES;
  for (const { data } of outputs) {
    for (const mimeType of IMAGES) {
      if (typeof data[mimeType] !== "string" || (left -= data[mimeType].length) < 0) continue;
      blocks.push({ type: "image", data: data[mimeType].replace(/\s/g, ""), mimeType });
    }
  }
  return blocks;
}
