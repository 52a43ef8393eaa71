//! Our programs as AgentCore is given them, and their answers found again. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sandbox::program::{NOTABLE, is_path, is_word, mark, one_line};

const BOOT: &str = include_str!("guest/boot.py");
/// What both need, in the order in which they need each other.
const PLACE: [(&str, &str); 3] = [
    ("place", include_str!("guest/place.py")),
    ("captured", include_str!("guest/captured.py")),
    ("streams", include_str!("guest/streams.py")),
];
const OF_KERNEL: [(&str, &str); 5] = [
    ("display", include_str!("../guest/display.py")),
    ("figures", include_str!("../guest/figures.py")),
    ("errors", include_str!("../guest/errors.py")),
    ("alarm", include_str!("guest/alarm.py")),
    ("kernel", include_str!("guest/kernel.py")),
];
const OF_TOOL: [(&str, &str); 2] =
    [("shell", include_str!("guest/shell.py")), ("tool", include_str!("guest/tool.py"))];
/// The folder beside the files folder that is ours, as the tools for files name it.
pub(super) const ASIDE: &str = ".interpreterd";
/// What the arguments of a command line may take; AgentCore hangs at some 128 KiB.
const MAX_ARGUMENTS_BYTES: usize = 40 << 10;

/// Where a sandbox is, as its interpreter says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Here {
    /// The working folder at the start: the files folder and ours are in it.
    folder: String,
    /// The files folder, absolute.
    pub(super) files_dir: String,
    /// Its Python.
    python: String,
    /// The version of its Python.
    pub(super) version: String,
    /// Some of its packages, with their versions.
    #[serde(default)]
    pub(super) packages: BTreeMap<String, String>,
}

/// Code for the interpreter, or a command line, and the mark that its answer bears.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) text: String,
    pub(super) mark: String,
    /// Arguments that do not fit into it: a name in our folder, and what must stand there before.
    pub(super) arguments: Option<(String, String)>,
}

impl Here {
    fn is_sound(&self) -> bool {
        let is_known = |name: &str| NOTABLE.contains(&name);
        let mut packages = self.packages.iter();
        is_path(&self.folder)
            && is_path(&self.files_dir)
            && self.files_dir.len() > 1
            && is_word(&self.python, "/_-.+")
            && is_word(&self.version, ".+-")
            && packages.all(|(name, version)| is_known(name) && is_word(version, ".+-!_"))
    }

    /// Whether it is the same place.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.folder == other.folder
    }

    pub(super) fn python(&self) -> &str {
        &self.python
    }
}

/// Makes the interpreter a session's kernel, whatever was there before: where it was, once that is known.
pub(super) fn set_up(env: &BTreeMap<String, String>, here: Option<&Here>) -> Program {
    let modules = [PLACE.as_slice(), &OF_KERNEL].concat();
    let folder = here.map(|here| here.folder.as_str());
    let told = json!({"do": "set_up", "env": env, "packages": NOTABLE, "folder": folder});
    asked("kernel", told, &modules)
}

/// Asks the kernel for something: a cell to be run, or whether it listens.
pub(super) fn of_kernel(told: Value) -> Program {
    asked("kernel", told, &[])
}

/// A command line that does a piece of work beside the kernel.
pub(super) fn of_tool(here: &Here, mut told: Value) -> Program {
    let mut arguments = None;
    let text = told.to_string();
    if text.len() > MAX_ARGUMENTS_BYTES {
        let name = format!("args-{}", mark().trim_end_matches(':'));
        told = json!({"do": told["do"], "args": name});
        arguments = Some((name, text));
    }
    told["files_dir"] = json!(format!("{}/files", here.folder));
    told["aside"] = json!(format!("{}/{ASIDE}", here.folder));
    let modules = [PLACE.as_slice(), &OF_TOOL].concat();
    let program = asked("tool", told, &modules);
    // neither holds anything that means something to a shell between these quotes
    let text = format!("exec \"{}\" -I -S -c \"{}\"", here.python, program.text);
    Program { text, arguments, ..program }
}

fn asked(ask: &str, mut told: Value, modules: &[(&str, &str)]) -> Program {
    let mark = mark();
    told["ask"] = json!(ask);
    told["mark"] = json!(mark);
    told["modules"] = json!(modules);
    Program { text: one_line(BOOT, &told), mark, arguments: None }
}

/// An answer in what was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    /// The line that bears the mark.
    pub(super) line: &'a str,
    /// The line after it, where a long answer stands.
    pub(super) next: &'a str,
}

/// The answer that bears the mark; None where there is none.
pub(super) fn answer<'a>(printed: &'a str, mark: &str) -> Option<Answer<'a>> {
    let (_, rest) = printed.split_once(mark)?;
    let mut lines = rest.lines().map(str::trim_end);
    Some(Answer { line: lines.next().unwrap_or_default(), next: lines.next().unwrap_or_default() })
}

/// Where the sandbox is, from an answer; None where that is nothing that can be.
pub(super) fn here(answer: &str) -> Option<Here> {
    serde_json::from_str(answer).ok().filter(Here::is_sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere(folder: &str, python: &str) -> Value {
        json!({"folder": folder, "files_dir": "/w/files", "python": python, "version": "3.10.12"})
    }

    #[test]
    fn what_is_told_never_becomes_code_and_means_nothing_to_a_shell() {
        let env = BTreeMap::from([("A".to_owned(), "'\n\\\"); print('x') $(id)".to_owned())]);
        let program = set_up(&env, None);
        assert!(!program.text.contains("id)") && program.text.lines().count() == 1);
        let here = here(&somewhere("/w", "/usr/bin/python3").to_string()).expect("sound");
        let line = of_tool(&here, json!({"do": "shell", "command": "\"; $(id) `id` \\"})).text;
        let inside = line.strip_prefix("exec \"/usr/bin/python3\" -I -S -c \"").expect("the start");
        let inside = inside.strip_suffix('"').expect("the end");
        assert!(!inside.contains(['"', '$', '`', '\\', '\n', '!']), "{inside}");
        assert!(line.len() < 128 << 10, "{}", line.len());
    }

    #[test]
    fn long_arguments_go_by_a_file() {
        let here = here(&somewhere("/w", "/usr/bin/python3").to_string()).expect("sound");
        let program = of_tool(&here, json!({"do": "shell", "command": "x".repeat(200_000)}));
        assert!(program.text.len() < 128 << 10, "{}", program.text.len());
        let (name, text) = program.arguments.expect("a file");
        assert!(name.starts_with("args-") && text.len() > 200_000);
    }

    #[test]
    fn an_answer_is_found_by_its_mark() {
        let found = |line, next| Some(Answer { line, next });
        assert_eq!(answer("noise\r\nM:{\"a\":1}\r\nmore\r\n", "M:"), found("{\"a\":1}", "more"));
        assert_eq!(answer("no newline M:{}", "M:"), found("{}", ""));
        assert_eq!(answer("noise", "M:"), None);
    }

    #[test]
    fn where_it_is_must_be_where_something_can_be() {
        for (folder, python, sound) in [
            ("/opt/amazon/genesis1p-tools/var", "/usr/bin/python3.10", true),
            ("relative", "/usr/bin/python3", false),
            ("/w", "/usr/bin/python3\"; id #", false),
            ("/w", "", false),
        ] {
            let found = here(&somewhere(folder, python).to_string());
            assert_eq!(found.is_some(), sound, "{folder} {python}");
        }
        assert_eq!(here("{}"), None);
    }
}
