//! What a sandbox offers besides its kernel: files and processes.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::BoxStream;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, RANGE};
use reqwest::{Body, Method, RequestBuilder, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::timeout;

use super::access::{Door, Port, parsed, send, whole};
use super::envelope;
use super::error::E2bError;
use crate::sandbox::listing::{Listing, Stamp};

/// Sizes are added up, and no sandbox holds such a file.
const MAX_FILE_BYTES: u64 = 1 << 46;
const CALL_LIMIT: Duration = Duration::from_secs(30);
const HEALTH_LIMIT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// A listing of 100,000 files has some 300 bytes for each.
const MAX_LISTING_BYTES: usize = 64 << 20;

/// A file or folder as envd tells it. What is zero or empty is left out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    #[serde(default)]
    pub(super) path: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    size: String,
    #[serde(default)]
    modified_time: String,
    symlink_target: Option<String>,
    #[serde(default)]
    permissions: String,
}

impl Entry {
    /// A link has the kind of what it leads to.
    fn is_link(&self) -> bool {
        self.symlink_target.is_some() || self.permissions.starts_with('L')
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == "FILE_TYPE_FILE" && !self.is_link()
    }

    pub(super) fn is_folder(&self) -> bool {
        self.kind == "FILE_TYPE_DIRECTORY"
    }

    pub(super) fn size(&self) -> u64 {
        self.size.parse().unwrap_or(0).min(MAX_FILE_BYTES)
    }

    pub(super) fn stamp(&self) -> Stamp {
        let modified = OffsetDateTime::parse(&self.modified_time, &Rfc3339);
        Stamp { size: self.size(), modified: modified.unwrap_or(OffsetDateTime::UNIX_EPOCH) }
    }
}

/// What of a sandbox's entries are files of the session.
pub(super) fn listing(entries: &[Entry], files_dir: &str) -> Listing {
    let files = entries.iter().filter(|entry| entry.is_file()).filter_map(|entry| {
        let below = entry.path.strip_prefix(files_dir)?.strip_prefix('/')?;
        Some((below.to_owned(), entry.stamp()))
    });
    Listing::of(files, false)
}

#[derive(Deserialize)]
struct One {
    entry: Entry,
}

#[derive(Deserialize)]
struct Many {
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Nothing {}

/// How a remote call failed that was understood.
#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    #[serde(default)]
    pub(super) code: Value,
    #[serde(default)]
    pub(super) message: String,
}

/// Calls of envd in the name of one user of the sandbox.
pub(super) struct Envd<'a> {
    pub(super) door: &'a Door,
    pub(super) user: &'a str,
}

impl Envd<'_> {
    /// Whether the sandbox is there.
    pub(super) async fn health(&self) -> Result<(), E2bError> {
        let request = self.door.request(Method::GET, Port::Envd, "/health");
        self.door.accepted(send(request, HEALTH_LIMIT).await?).await.map(drop)
    }

    /// What a path names; None where there is nothing.
    pub(super) async fn stat(&self, path: &str) -> Result<Option<Entry>, E2bError> {
        match self.call::<One>("Stat", &json!({"path": path}), MAX_ANSWER_BYTES).await {
            Ok(One { entry }) => Ok(Some(entry)),
            Err(error) if error.has_status(&[404]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Everything below a folder, so deep; nothing where there is no such folder.
    pub(super) async fn list(&self, path: &str, depth: u32) -> Result<Vec<Entry>, E2bError> {
        let message = json!({"path": path, "depth": depth});
        match self.call::<Many>("ListDir", &message, MAX_LISTING_BYTES).await {
            Ok(Many { entries }) => Ok(entries),
            Err(error) if error.has_status(&[404]) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Puts a file in another place, over what is there; folders on the way are made.
    pub(super) async fn rename(&self, from: &str, to: &str) -> Result<Entry, E2bError> {
        let message = json!({"source": from, "destination": to});
        Ok(self.call::<One>("Move", &message, MAX_ANSWER_BYTES).await?.entry)
    }

    /// Removes a file; one that is not there is no fault.
    pub(super) async fn remove(&self, path: &str) -> Result<(), E2bError> {
        let message = json!({"path": path});
        self.call::<Nothing>("Remove", &message, MAX_ANSWER_BYTES).await.map(drop)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        message: &Value,
        most: usize,
    ) -> Result<T, E2bError> {
        let path = format!("/filesystem.Filesystem/{method}");
        let request = self.named(self.door.request(Method::POST, Port::Envd, &path));
        let request = request.header("Connect-Protocol-Version", "1").json(message);
        let response = self.door.accepted(send(request, CALL_LIMIT).await?).await?;
        let body = timeout(CALL_LIMIT, whole(response, most)).await;
        parsed(&body.map_err(|_| E2bError::TooSlow)??)
    }

    /// Starts a process and gives the stream of what it does.
    pub(super) async fn start(&self, process: &Value) -> Result<Response, E2bError> {
        let message = json!({"process": process, "stdin": false}).to_string();
        let path = "/process.Process/Start";
        let request = self.named(self.door.request(Method::POST, Port::Envd, path));
        let request = request
            .header("Connect-Protocol-Version", "1")
            .header("Connect-Accept-Encoding", "identity")
            .header("Keepalive-Ping-Interval", "15")
            .header(CONTENT_TYPE, "application/connect+json")
            .body(envelope::request(&message));
        self.door.accepted(send(request, CALL_LIMIT).await?).await
    }

    /// Writes a file. Its stream says why, where it ends early.
    pub(super) async fn upload(
        &self,
        path: &str,
        content: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<(), E2bError> {
        let request = self.door.request(Method::POST, Port::Envd, "/files");
        let request = request.query(&[("path", path), ("username", self.user)]);
        let body = Body::wrap_stream(content);
        let request = if self.door.takes_raw_files {
            request.header(CONTENT_TYPE, "application/octet-stream").body(body)
        } else {
            let part = reqwest::multipart::Part::stream(body).file_name("file");
            request.multipart(reqwest::multipart::Form::new().part("file", part))
        };
        let response = request.send().await.map_err(super::access::failed)?;
        let response = self.door.accepted(response).await?;
        let body = timeout(CALL_LIMIT, whole(response, MAX_ANSWER_BYTES)).await;
        body.map_err(|_| E2bError::TooSlow)?.map(drop)
    }

    /// Opens a file for reading: all of it, or a part of this length.
    pub(super) async fn download(
        &self,
        path: &str,
        part: Option<(u64, u64)>,
    ) -> Result<Response, E2bError> {
        let request = self.door.request(Method::GET, Port::Envd, "/files");
        let request = request.query(&[("path", path), ("username", self.user)]);
        // with another encoding there would be no length
        let mut request = request.header(ACCEPT_ENCODING, "identity");
        if let Some((first, length)) = part {
            request = request.header(RANGE, format!("bytes={first}-{}", first + length - 1));
        }
        self.door.accepted(send(request, CALL_LIMIT).await?).await
    }

    fn named(&self, request: RequestBuilder) -> RequestBuilder {
        let user = STANDARD.encode(format!("{}:", self.user));
        request.header("Authorization", format!("Basic {user}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_with_what_is_left_out() {
        let entry = |text| serde_json::from_str::<Entry>(text).expect("an entry");
        let file = entry(
            r#"{"name":"a","type":"FILE_TYPE_FILE","path":"/files/a","size":"12","modifiedTime":"2026-01-01T00:00:00Z"}"#,
        );
        assert_eq!((file.is_file(), file.size()), (true, 12));
        let empty = entry(r#"{"path":"/files/a","type":"FILE_TYPE_FILE"}"#);
        assert_eq!((empty.is_file(), empty.size()), (true, 0));
        let link =
            entry(r#"{"path":"/files/l","type":"FILE_TYPE_FILE","symlinkTarget":"/etc/passwd"}"#);
        assert!(!link.is_file());
        assert!(!entry(r#"{"path":"/files/d","type":"FILE_TYPE_DIRECTORY"}"#).is_file());
    }

    #[test]
    fn files_below_the_files_folder_are_the_sessions() {
        let entry = |path: &str, kind: &str, time: &str| -> Entry {
            let entry = json!({"path": path, "type": kind, "size": "1", "modifiedTime": time});
            serde_json::from_value(entry).expect("an entry")
        };
        let time = "2026-01-01T00:00:00.000000001Z";
        let found = [
            entry("/etc/passwd", "FILE_TYPE_FILE", time),
            entry("/filesystem/x", "FILE_TYPE_FILE", time),
            entry("/files/folder", "FILE_TYPE_DIRECTORY", time),
            entry("/files/folder/a", "FILE_TYPE_FILE", time),
            entry("/files/b", "FILE_TYPE_FILE", "nonsense"),
        ];
        let entries = listing(&found, "/files").entries();
        let told: Vec<_> =
            entries.iter().map(|entry| (entry.path.as_str(), entry.modified_at.year())).collect();
        assert_eq!(told, [("b", 1970), ("folder/a", 2026)]);
    }
}
