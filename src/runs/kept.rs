//! Files that runs made, copied out before their sandbox ends.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::sync::CancellationToken;

use super::record::KeptFiles;
use super::{Desk, RunError};
use crate::domain::coded::{Class, Coded};
use crate::domain::crash;
use crate::domain::file::{FilePath, OutputFile, Part};
use crate::domain::id::{RunId, Tenant};
use crate::sandbox::{Sandbox, SandboxError};
use crate::store::StoredFile;

/// Files that one run may keep.
const MAX_FILES: usize = 200;
/// Larger files are not given inside an answer.
const MAX_INLINE_BYTES: u64 = 1 << 20;
/// What is given inside one answer together.
const MAX_INLINE_TOTAL_BYTES: u64 = 16 << 20;
/// What stands in a URL as it is: RFC 3986, unreserved, and the slash between folders.
const URL_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

impl Desk {
    /// Copies files out of the sandbox, within bounds. One that is gone again, or that cannot be
    /// read, is left out and logged; the run has its result all the same.
    pub(super) async fn keep(
        &self,
        sandbox: &dyn Sandbox,
        run_id: RunId,
        paths: BTreeSet<String>,
        linked: &[FilePath],
        cancel: &CancellationToken,
    ) -> KeptFiles {
        let mut kept = KeptFiles { cut: paths.len() > MAX_FILES, ..KeptFiles::default() };
        let mut left = self.limits.kept_bytes;
        for path in paths.into_iter().take(MAX_FILES) {
            let Ok(path) = FilePath::new(path) else { continue };
            if cancel.is_cancelled() {
                kept.cut = true;
                break;
            }
            match self.keep_one(sandbox, &path, left).await {
                Ok(stored) => {
                    left = left.saturating_sub(stored.size_bytes);
                    kept.files.push(output_file(run_id, &path, &stored, linked.contains(&path)));
                    kept.stored.push(stored);
                }
                Err(error) => {
                    // no room, in a bound of ours or on the disk
                    kept.cut |= error.code().class == Class::TooLarge
                        || matches!(error, RunError::Store(_));
                    // its name is the program's own text, and no text of a program is logged
                    tracing::warn!(run.id = %run_id, code = error.code().name, "a file was not kept");
                }
            }
        }
        crash::point("files.kept");
        kept
    }

    async fn keep_one(
        &self,
        sandbox: &dyn Sandbox,
        path: &FilePath,
        left: u64,
    ) -> Result<StoredFile, RunError> {
        let (entry, content) = sandbox.read_file(path, Part::Whole).await?;
        let most = self.limits.file_bytes.min(left);
        if entry.size_bytes > most {
            return Err(SandboxError::FileTooLarge(most).into());
        }
        let written = self.blobs.write(content).await?;
        Ok(StoredFile {
            path: path.to_string(),
            blob: written.blob,
            size_bytes: written.size_bytes,
            mime: entry.mime,
            sha256: written.sha256,
        })
    }

    /// Puts the content of small files into an answer.
    pub(super) async fn include_content(
        &self,
        tenant: &Tenant,
        id: RunId,
        files: &mut [OutputFile],
    ) {
        let mut left = MAX_INLINE_TOTAL_BYTES;
        for file in files.iter_mut().filter(|file| file.size_bytes <= MAX_INLINE_BYTES) {
            let Some(rest) = left.checked_sub(file.size_bytes) else { break };
            left = rest;
            let stored = self.store.output_file(tenant, id, &file.path).await.ok().flatten();
            let Some(stored) = stored else { continue };
            if let Ok(content) = self.blobs.read_whole(&stored.blob).await {
                file.content_base64 = Some(STANDARD.encode(content));
            }
        }
    }
}

fn output_file(run_id: RunId, path: &FilePath, stored: &StoredFile, linked: bool) -> OutputFile {
    OutputFile {
        path: path.to_string(),
        name: path.name().to_owned(),
        url: format!("/v1/runs/{run_id}/files/{}", utf8_percent_encode(path.as_str(), URL_PATH)),
        size_bytes: stored.size_bytes,
        mime: stored.mime.clone(),
        sha256: stored.sha256.clone(),
        linked,
        content_base64: None,
    }
}
