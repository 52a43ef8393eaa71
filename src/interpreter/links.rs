//! `sandbox:` links in an answer: which files they mean. Pure.

use percent_encoding::percent_decode_str;

use crate::domain::file::FilePath;

/// Links that are looked at.
const MAX_LINKS: usize = 200;
/// Longer targets are no names of files.
const MAX_TARGET_BYTES: usize = 4096;
const SCHEME: &str = "sandbox:";
const MARKDOWN: &str = "](";
/// What stands before the scheme of a link: Markdown, also in angle brackets, and HTML.
const STARTS: [&str; 4] = ["](", "](<", "href=\"", "src=\""];
/// Folders that models call the files folder, whatever they are told.
const FOLDERS: [&str; 2] = ["/files", "/mnt/data"];

/// What an answer links, in order, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// The files that the links mean. None lies outside of the files folder.
    pub paths: Vec<FilePath>,
    /// The links that mean no file of the files folder, as they are written.
    pub elsewhere: Vec<String>,
    /// Targets without a scheme: files if there are such files, and nothing else if not.
    pub perhaps: Vec<FilePath>,
}

/// The links of an answer.
#[must_use]
pub fn linked(text: &str, files_dir: &str) -> Linked {
    let mut linked = Linked::default();
    for (place, scheme) in text.match_indices(SCHEME).take(MAX_LINKS) {
        let Some(start) = STARTS.iter().find(|start| text[..place].ends_with(*start)) else {
            continue;
        };
        let target = target(&text[place + scheme.len()..], start);
        let Some(target) = target.filter(|target| target.len() <= MAX_TARGET_BYTES) else {
            continue;
        };
        match path_of(target, files_dir) {
            Some(path) if !linked.paths.contains(&path) => linked.paths.push(path),
            Some(_) => {}
            None => {
                let target = target.trim().to_owned();
                if !linked.elsewhere.contains(&target) {
                    linked.elsewhere.push(target);
                }
            }
        }
    }
    for (place, start) in text.match_indices(MARKDOWN).take(MAX_LINKS) {
        let target = target(&text[place + start.len()..], start);
        let target =
            target.filter(|target| target.len() <= MAX_TARGET_BYTES && !target.contains(':'));
        let Some(path) = target.and_then(|target| path_of(target, files_dir)) else { continue };
        if !linked.perhaps.contains(&path) {
            linked.perhaps.push(path);
        }
    }
    linked
}

/// The text up to what closes the link; names may hold pairs of parentheses of their own.
fn target<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    // no longer than a target may be, however long the line is
    let near = &text[..text.floor_char_boundary(MAX_TARGET_BYTES + 1)];
    let line = near.split('\n').next().unwrap_or_default();
    if start.contains('"') {
        return line.split_once('"').map(|(target, _)| target);
    }
    if start.contains('<') {
        return line.split_once('>').map(|(target, _)| target);
    }
    let mut depth = 0;
    for (index, character) in line.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(&line[..index]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn path_of(target: &str, files_dir: &str) -> Option<FilePath> {
    let target = target.trim();
    let decoded = percent_decode_str(target).decode_utf8().ok()?;
    // a title may follow: [x](sandbox:/files/x.csv "the table")
    let decoded = decoded.split_once(" \"").map_or(decoded.as_ref(), |(path, _)| path);
    let below = |folder: &str| Some(decoded.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
    let known = || FOLDERS.iter().find_map(|folder| below(folder));
    let path = below(files_dir).or_else(known).unwrap_or_else(|| decoded.to_owned());
    FilePath::new(path.trim_start_matches("./")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        linked(text, "/files").paths.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_are_found_however_they_are_written() {
        let text = "See [a](sandbox:/files/out.csv), [the chart](sandbox:/files/a%20b%20(1).png) and \
             ![x](sandbox:/files/a b (2).png \"title\"), again [a](sandbox:/files/out.csv), [r](sandbox:rel/x.txt).";
        assert_eq!(names(text), ["out.csv", "a b (1).png", "a b (2).png", "rel/x.txt"]);
        let other = "[a](<sandbox:/files/a (b.csv>) <a href=\"sandbox:/files/c.csv\">c</a> [d](sandbox:/mnt/data/d.csv)";
        assert_eq!(names(other), ["a (b.csv", "c.csv", "d.csv"]);
    }

    #[test]
    fn no_link_leads_outside() {
        for text in [
            "[a](sandbox:/etc/passwd)",
            "[a](sandbox:/files/../../etc/passwd)",
            "[a](sandbox:/files/%2e%2e/x)",
            "[a](https://x/y)",
            "[a](sandbox:/files/)",
            "[a](sandbox:/files/x",
        ] {
            assert_eq!(names(text), Vec::<String>::new(), "{text}");
        }
        let plain = linked(
            "![c](chart.png) [x](https://a/b) [d](/files/d%20e.csv) [f](#part) [m](mailto:a)",
            "/files",
        );
        let plain: Vec<String> = plain.perhaps.iter().map(ToString::to_string).collect();
        assert_eq!(plain, ["chart.png", "d e.csv", "#part"], "what is no file is none later");
        let outside = linked("[a](sandbox:/etc/passwd) [a](sandbox:/etc/passwd)", "/files");
        assert_eq!(outside.elsewhere, ["/etc/passwd"], "it is told");
    }
}
