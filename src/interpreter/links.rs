//! `sandbox:` links in an answer: which files they mean. Pure.

use percent_encoding::percent_decode_str;

use crate::domain::file::FilePath;

/// Links that are looked at.
const MAX_LINKS: usize = 100;
const SCHEME: &str = "](sandbox:";

/// The files that an answer links, in order, each once. A link leads to no place outside.
#[must_use]
pub fn linked(text: &str, files_dir: &str) -> Vec<FilePath> {
    let mut paths = Vec::new();
    let mut rest = text;
    for _ in 0..MAX_LINKS {
        let Some(start) = rest.find(SCHEME) else { break };
        rest = &rest[start + SCHEME.len()..];
        if let Some(path) = target(rest).and_then(|target| path_of(target, files_dir))
            && !paths.contains(&path)
        {
            paths.push(path);
        }
    }
    paths
}

/// The text up to the parenthesis that closes the link; names may hold pairs of their own.
fn target(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (index, character) in text.char_indices() {
        match character {
            '\n' => return None,
            '(' => depth += 1,
            ')' if depth == 0 => return Some(&text[..index]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn path_of(target: &str, files_dir: &str) -> Option<FilePath> {
    let target = target.trim().trim_start_matches('<').trim_end_matches('>');
    let decoded = percent_decode_str(target).decode_utf8().ok()?;
    // a title may follow: [x](sandbox:/files/x.csv "the table")
    let decoded = decoded.split_once(" \"").map_or(decoded.as_ref(), |(path, _)| path);
    let below = |folder: &str| Some(decoded.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
    let path = below(files_dir).or_else(|| below("/files")).unwrap_or_else(|| decoded.to_owned());
    FilePath::new(path.trim_start_matches("./")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        linked(text, "/files").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_are_found_however_they_are_written() {
        let text = "See [a](sandbox:/files/out.csv), [the chart](sandbox:/files/a%20b%20(1).png) and \
             ![x](sandbox:/files/a b (2).png \"title\"), again [a](sandbox:/files/out.csv), [r](sandbox:rel/x.txt).";
        assert_eq!(names(text), ["out.csv", "a b (1).png", "a b (2).png", "rel/x.txt"]);
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
    }
}
