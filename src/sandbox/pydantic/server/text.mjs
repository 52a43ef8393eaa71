// The text block of an answer, in the shape that mcp-run-python gives.

const MOST_TEXT = 1 << 20;
const decoder = new TextDecoder();

export function textOf(outcome, mode, limit) {
  const printed = printedText(outcome, Math.min(limit, MOST_TEXT));
  const failed = outcome.exit_code !== 0 || outcome.reason !== null;
  return mode === "json" ? asJson(outcome, printed, failed) : asXml(outcome, printed, failed);
}

function printedText({ stdout, stderr }, most) {
  const [out, err] = [whole(stdout), whole(stderr)];
  const both = out + (out && err && !out.endsWith("\n") ? "\n" : "") + err;
  const text = both.length > most
    ? `${both.slice(0, most >> 1)}\n...\n${both.slice(-(most - (most >> 1)))}`
    : both;
  return text.replace(/\n$/, "");
}

function whole({ head, tail }) {
  return decoder.decode(head) + (tail.length > 0 ? `\n...\n${decoder.decode(tail)}` : "");
}

function errorText({ error, reason, exit_code }) {
  const said = error ? error.traceback || `${error.name}: ${error.message}` : "";
  if (reason === null) return said || `exit code ${exit_code}`;
  return [reason === "timeout" ? "TimeoutError: the time limit was reached" : "interrupted", said].filter(
    Boolean,
  ).join("\n");
}

function valueOf({ returned, outputs }) {
  if (returned !== null) return { value: parsed(returned) };
  const main = outputs.find((output) => output.main);
  return main ? { value: main.data["text/plain"] ?? null } : null;
}

// Python's JSON has NaN and Infinity, which are no JSON: as upstream, such a value is shown by its text.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function asJson(outcome, printed, failed) {
  const output = printed ? printed.split("\n") : [];
  if (failed) return JSON.stringify({ status: "run-error", output, error: errorText(outcome) });
  return JSON.stringify({ status: "success", output, return_value: valueOf(outcome)?.value ?? null });
}

function asXml(outcome, printed, failed) {
  const parts = [`<status>${failed ? "run-error" : "success"}</status>`];
  if (printed) parts.push("<output>", escaped("output", printed), "</output>");
  const returned = valueOf(outcome);
  if (failed) parts.push("<error>", escaped("error", errorText(outcome)), "</error>");
  else if (returned) {
    parts.push("<return_value>", escaped("return_value", shown(returned.value)), "</return_value>");
  }
  return parts.join("\n");
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// What is printed must not close the element that it stands in.
function escaped(element, text) {
  const tag = new RegExp(`</?\\s*${element}(?:[^>]*>)?`, "gi");
  return text.replace(tag, (found) => found.replaceAll("<", "&lt;").replaceAll(">", "&gt;"));
}
