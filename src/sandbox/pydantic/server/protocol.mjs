// JSON-RPC 2.0 in lines over stdin and stdout, and the methods of MCP.

const VERSION = "1.0.0";
const PROTOCOLS = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const MOST_MESSAGE = 64 << 20;
const NEWLINE = 10;
export const CODES = {
  parse: -32700,
  request: -32600,
  method: -32601,
  params: -32602,
  internal: -32603,
  busy: -32000,
  notStarted: -32001,
};

export class RpcError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const encoder = new TextEncoder();

function send(message) {
  const bytes = encoder.encode(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  for (let done = 0; done < bytes.length;) done += Deno.stdout.writeSync(bytes.subarray(done));
}

// Serves until stdin ends.
export async function serve(tools) {
  const session = new Session(tools);
  try {
    for await (const line of lines(Deno.stdin.readable)) session.hear(line);
  } catch (error) {
    console.error(error.message);
    send({ id: null, error: { code: CODES.request, message: error.message } });
    Deno.exit(1);
  }
  Deno.exit(0); // at once, whatever runs
}

async function* lines(stream) {
  const decoder = new TextDecoder();
  let parts = [];
  let size = 0;
  for await (const chunk of stream) {
    let start = 0;
    for (let end; (end = chunk.indexOf(NEWLINE, start)) >= 0; start = end + 1) {
      parts.push(chunk.subarray(start, end));
      const line = decoder.decode(joined(parts, size + end - start)).trim();
      parts = [];
      size = 0;
      if (line) yield line;
    }
    parts.push(chunk.subarray(start));
    size += chunk.length - start;
    if (size > MOST_MESSAGE) throw new Error("the message is too large");
  }
}

function joined(parts, size) {
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(size);
  let done = 0;
  for (const part of parts) {
    whole.set(part, done);
    done += part.length;
  }
  return whole;
}

class Session {
  constructor(tools) {
    this.tools = tools;
    this.calls = new Map(); // by request id, those that are under way
  }

  hear(line) {
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      return send({ id: null, error: { code: CODES.parse, message: "Parse error" } });
    }
    const isMessage = message !== null && typeof message === "object" && message.jsonrpc === "2.0";
    if (!isMessage || Array.isArray(message)) {
      return send({ id: null, error: { code: CODES.request, message: "Invalid Request" } });
    }
    if (typeof message.method !== "string") return; // a response: we ask the client nothing
    if (message.id === undefined || message.id === null) this.notified(message);
    else this.answer(message);
  }

  notified({ method, params }) {
    const call = method === "notifications/cancelled" ? this.calls.get(params?.requestId) : undefined;
    if (!call) return;
    call.silent = true; // no answer to a cancelled request
    call.cell?.stop("interrupted");
  }

  async answer({ id, method, params }) {
    const call = { silent: false, cell: null, tell: teller(params?._meta?.progressToken) };
    call.began = (cell) => (call.cell = cell);
    this.calls.set(id, call);
    let reply;
    try {
      reply = { id, result: await this.result(method, params, call) };
    } catch (error) {
      reply = { id, error: { code: error.code ?? CODES.internal, message: String(error?.message ?? error) } };
    }
    if (this.calls.get(id) === call) this.calls.delete(id);
    if (!call.silent) send(reply);
  }

  async result(method, params, call) {
    if (method === "initialize") return this.initialized(params);
    if (method === "ping") return {};
    if (method === "tools/list") return { tools: this.tools.list() };
    if (method === "tools/call") return await this.tools.call(params?.name, params?.arguments ?? {}, call);
    throw new RpcError(CODES.method, `Method not found: ${method}`);
  }

  initialized(params) {
    return {
      protocolVersion: PROTOCOLS.includes(params?.protocolVersion) ? params.protocolVersion : PROTOCOLS[0],
      capabilities: { tools: {} },
      serverInfo: { name: "interpreterd-pyodide", version: VERSION },
      instructions:
        "Run Python with run_python_code: its state lives from call to call, and files lie under /files.",
    };
  }
}

// What tells the caller of output, if it has asked for that.
function teller(progressToken) {
  if (progressToken === undefined || progressToken === null) return () => {};
  let progress = 0;
  return (stream, message, bytes) => {
    const _meta = { stream, data: bytes.toBase64() };
    send({
      method: "notifications/progress",
      params: { progressToken, progress: ++progress, message, _meta },
    });
  };
}
