//! Conditional and range requests: RFC 9110, sections 13 and 14.

use axum::http::{HeaderMap, HeaderName, header};

use crate::domain::file::{Condition, Part};

/// What must be so before a file is written or removed.
pub(super) fn of_change(headers: &HeaderMap) -> Condition {
    match (tags(headers, header::IF_MATCH), tags(headers, header::IF_NONE_MATCH)) {
        (Some(tags), _) => Condition::Matches(tags),
        (None, Some(tags)) => Condition::Differs(tags.iter().map(|tag| weakly(tag)).collect()),
        (None, None) => Condition::Always,
    }
}

/// What becomes of a read of a file with this tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// It is given.
    Given,
    /// The caller has it already.
    NotModified,
    /// It is not what the caller expects.
    Refused,
}

pub(super) fn of_read(headers: &HeaderMap, etag: &str) -> Read {
    if let Some(tags) = tags(headers, header::IF_MATCH) {
        if !Condition::Matches(tags).holds(Some(etag)) {
            return Read::Refused;
        }
    } else if let Some(tags) = tags(headers, header::IF_NONE_MATCH) {
        let tags = tags.iter().map(|tag| weakly(tag)).collect();
        if !Condition::Differs(tags).holds(Some(etag)) {
            return Read::NotModified;
        }
    }
    Read::Given
}

/// The part that is asked for; the whole where the header is none that is understood, asks for
/// several parts, or holds only for another state of the file.
pub(super) fn part(headers: &HeaderMap, etag: &str) -> Part {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let same = text(header::IF_RANGE).is_none_or(|tag| tag == format!("\"{etag}\""));
    let range = text(header::RANGE).filter(|_| same).and_then(parse);
    range.unwrap_or_default()
}

fn parse(range: &str) -> Option<Part> {
    let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    match (first, last) {
        ("", last) => Some(Part::Last(number(last)?)),
        (first, "") => Some(Part::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Part::From(first, Some(last)))
        }
    }
}

/// The tags of a header, none for `*`; a weak one keeps its `W/` and so equals no tag of ours.
fn tags(headers: &HeaderMap, name: HeaderName) -> Option<Vec<String>> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let list: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    if list.is_empty() {
        return None;
    }
    if list.contains(&"*") {
        return Some(Vec::new());
    }
    Some(list.iter().map(|tag| tag.replace('"', "")).collect())
}

fn weakly(tag: &str) -> String {
    tag.trim_start_matches("W/").to_owned()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn ranges_are_read_as_the_standard_has_it() {
        for (range, expected) in [
            ("bytes=0-9", Part::From(0, Some(9))),
            ("bytes=5-", Part::From(5, None)),
            ("bytes=-5", Part::Last(5)),
            ("bytes=9-5", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("lines=1-2", Part::Whole),
        ] {
            assert_eq!(part(&headers(&[(header::RANGE, range)]), "t"), expected, "{range}");
        }
        let with = |tag| headers(&[(header::RANGE, "bytes=5-"), (header::IF_RANGE, tag)]);
        assert_eq!(part(&with("\"t\""), "t"), Part::From(5, None));
        assert_eq!(part(&with("\"other\""), "t"), Part::Whole);
        assert_eq!(part(&with("W/\"t\""), "t"), Part::Whole);
    }

    #[test]
    fn conditions_are_read_as_the_standard_has_it() {
        let read = |name: HeaderName, value| of_read(&headers(&[(name, value)]), "t");
        assert_eq!(read(header::IF_NONE_MATCH, "\"x\", W/\"t\""), Read::NotModified);
        assert_eq!(read(header::IF_NONE_MATCH, "*"), Read::NotModified);
        assert_eq!(read(header::IF_NONE_MATCH, "\"x\""), Read::Given);
        assert_eq!(read(header::IF_MATCH, "\"t\""), Read::Given);
        assert_eq!(read(header::IF_MATCH, "W/\"t\""), Read::Refused);
        assert_eq!(read(header::IF_MATCH, "*"), Read::Given);
        assert_eq!(
            of_change(&headers(&[(header::IF_NONE_MATCH, "*")])),
            Condition::Differs(Vec::new())
        );
        assert_eq!(of_change(&HeaderMap::new()), Condition::Always);
    }
}
