//! What the control plane is told and tells: pure.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::config::E2bEntry;

/// Percent-encoding of the filter by metadata: all but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A sandbox that is asked for.
#[derive(Debug, Serialize)]
pub(super) struct NewSandbox<'a> {
    #[serde(rename = "templateID")]
    template_id: &'a str,
    timeout: u64,
    metadata: &'a BTreeMap<String, String>,
    #[serde(rename = "autoPause")]
    auto_pause: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_internet_access: Option<bool>,
    network: Network<'a>,
    /// The first version asks for what the second always does.
    #[serde(skip_serializing_if = "Option::is_none")]
    secure: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Network<'a> {
    #[serde(rename = "allowPublicTraffic")]
    allow_public_traffic: bool,
    #[serde(rename = "allowOut", skip_serializing_if = "<[_]>::is_empty")]
    allow_out: &'a [String],
    #[serde(rename = "denyOut", skip_serializing_if = "<[_]>::is_empty")]
    deny_out: &'a [String],
}

impl<'a> NewSandbox<'a> {
    pub(super) fn of(entry: &'a E2bEntry, metadata: &'a BTreeMap<String, String>) -> Self {
        Self {
            template_id: &entry.template,
            timeout: entry.ttl.as_secs(),
            metadata,
            auto_pause: false,
            allow_internet_access: entry.internet,
            network: Network {
                allow_public_traffic: entry.public_traffic,
                allow_out: &entry.allow_out,
                deny_out: &entry.deny_out,
            },
            secure: None,
        }
    }

    /// The same for the first version of the API.
    pub(super) fn secured(self) -> Self {
        Self { secure: Some(true), ..self }
    }
}

/// A sandbox that was made or connected to. Its tokens are secrets.
#[derive(Deserialize)]
pub(super) struct Made {
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    #[serde(rename = "envdVersion")]
    pub(super) envd_version: Option<String>,
    #[serde(rename = "envdAccessToken")]
    pub(super) envd_access_token: Option<String>,
    #[serde(rename = "trafficAccessToken")]
    pub(super) traffic_access_token: Option<String>,
    pub(super) domain: Option<String>,
}

/// A sandbox in a list.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    #[serde(default)]
    pub(super) metadata: Option<BTreeMap<String, String>>,
}

/// A refusal's body; proxies and services leave out what is not theirs.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refused {
    pub(super) message: Option<String>,
    pub(super) error_code: Option<String>,
}

/// The filter by metadata before it is encoded as a query's value once more.
pub(super) fn metadata_filter(metadata: &BTreeMap<String, String>) -> String {
    let once = |text: &str| utf8_percent_encode(text, RESERVED).to_string();
    let twice = |text: &str| once(&once(text));
    let pairs = metadata.iter().map(|(name, value)| format!("{}={}", twice(name), twice(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Whether a listed sandbox bears all of this: a filter may be ignored where it is not known.
pub(super) fn bears(listed: &Listed, metadata: &BTreeMap<String, String>) -> bool {
    let of = listed.metadata.as_ref();
    metadata.iter().all(|(name, value)| of.and_then(|of| of.get(name)) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_encoded_as_the_official_client_does() {
        let filter = metadata_filter(&BTreeMap::from([("app".to_owned(), "x y&z".to_owned())]));
        let mut url = reqwest::Url::parse("http://a/").expect("a URL");
        url.query_pairs_mut().append_pair("metadata", &filter);
        assert_eq!(url.query(), Some("metadata=app%3Dx%252520y%252526z"));
    }

    #[test]
    fn a_sandbox_of_others_does_not_bear_our_marks() {
        let ours = BTreeMap::from([("interpreterd".to_owned(), "1".to_owned())]);
        let listed = |text| serde_json::from_str::<Listed>(text).expect("a sandbox");
        assert!(bears(
            &listed(r#"{"sandboxID":"i","metadata":{"interpreterd":"1","a":"b"}}"#),
            &ours
        ));
        assert!(!bears(&listed(r#"{"sandboxID":"i","metadata":{"interpreterd":"2"}}"#), &ours));
        assert!(!bears(&listed(r#"{"sandboxID":"i"}"#), &ours));
    }
}
