// The arguments of the tools: what is told of them, and the check against that.
import { CODES, RpcError } from "./protocol.mjs";

const text = (description) => ({ type: "string", description });
const number = (minimum, description) => ({ type: "integer", minimum, description });
const flag = (description) => ({ type: "boolean", default: false, description });
const environment = (description) => ({
  type: "object",
  propertyNames: { pattern: "^[^=\\0]+$" },
  additionalProperties: { type: "string", pattern: "^[^\\0]*$" },
  description,
});

const tool = (name, title, description, properties, required = []) => ({
  name,
  title,
  description,
  inputSchema: { type: "object", properties, required, additionalProperties: false },
});

export const SCHEMAS = [
  tool(
    "run_python_code",
    "Run Python code",
    "Runs Python in this session. Variables live from call to call, the value of the last expression is " +
      "returned, await works at the top level, and files lie under /files.",
    {
      python_code: text("The code to run"),
      global_variables: {
        type: "object",
        additionalProperties: true,
        description: "Variables that the code finds",
      },
      timeout_ms: number(1, "Time after which the code is interrupted"),
      output_bytes: number(0, "How much of each stream is kept"),
      session_env: environment("Environment variables of the session"),
      env: environment("Environment variables of this call alone"),
      stdin: text("What the code reads from its standard input"),
    },
    ["python_code"],
  ),
  tool("interrupt", "Interrupt", "Interrupts the code that runs now.", {}),
  tool("reset_session", "Reset the session", "Forgets all variables.", {
    hard: flag("Replace the interpreter, and drop files that are held in memory"),
  }),
  tool(
    "upload_file",
    "Upload a file",
    "Writes a file under /files.",
    {
      path: text("Where"),
      content_base64: text("Its bytes"),
      text: text("Or its text"),
      append: flag("Add to what is there"),
    },
    ["path"],
  ),
  tool(
    "download_file",
    "Download a file",
    "Reads a file under /files, or a piece of it.",
    { path: text("Which"), offset: number(0, "First byte"), length: number(1, "How many bytes at most") },
    ["path"],
  ),
  tool("list_files", "List files", "Lists the files under /files.", { path: text("Folder to begin at") }),
  tool("delete_file", "Delete a file", "Deletes a file under /files.", { path: text("Which") }, ["path"]),
  tool(
    "install_packages",
    "Load packages",
    "Loads packages of the local store.",
    {
      packages: {
        type: "array",
        items: { type: "string", pattern: "^[A-Za-z0-9._-]+$" },
        maxItems: 200,
        description: "Their names",
      },
    },
    ["packages"],
  ),
  tool("list_packages", "List packages", "Lists the packages that the local store has.", {}),
];

const refuse = (message) => {
  throw new RpcError(CODES.params, message);
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const CHECKS = {
  string: (value, { pattern }) => typeof value === "string" && (!pattern || new RegExp(pattern).test(value)),
  boolean: (value) => typeof value === "boolean",
  integer: (value, { minimum }) => Number.isSafeInteger(value) && value >= minimum,
  object: (value, { propertyNames: names = {}, additionalProperties: part }) =>
    isObject(value) && Object.keys(value).every((name) => CHECKS.string(name, names)) &&
    (part === true || Object.values(value).every((inner) => CHECKS[part.type](inner, part))),
  array: (value, { items, maxItems }) =>
    Array.isArray(value) && value.length <= maxItems &&
    value.every((item) => CHECKS[items.type](item, items)),
};

// Gives the arguments if they are as the schema says.
export function checked(given, { properties, required }) {
  if (!isObject(given)) refuse("arguments must be an object");
  for (const name of required) if (!Object.hasOwn(given, name)) refuse(`${name} is missing`);
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(properties, name)) refuse(`unknown argument: ${name}`);
    if (!CHECKS[properties[name].type](value, properties[name])) {
      refuse(`${name} is no ${properties[name].type} as it must be`);
    }
  }
  return given;
}

// The absolute path of a file; relative ones lie under /files.
export function filePath(path) {
  if (path === "" || path.includes("\0")) refuse("path must be a non-empty text without NUL");
  const parts = (path.startsWith("/") ? path : `/files/${path}`).split("/").filter((part) =>
    part !== "" && part !== "."
  );
  if (parts.includes("..")) refuse("path must not contain '..'");
  if (parts[0] !== "files") refuse("path must lie under /files");
  return `/${parts.join("/")}`;
}
