//! Files of a request, kept until their sandbox can take them.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio_util::io::ReaderStream;

use super::{Desk, RunError, Runs};
use crate::domain::file::{Condition, FileEntry, FilePath};
use crate::domain::id::{SessionId, Tenant};
use crate::sandbox::Sandbox;

/// A file that comes with a request.
pub struct NewFile {
    /// Where it is to lie.
    pub path: FilePath,
    /// What is in it.
    pub content: Content,
}

/// Where the content is meanwhile.
pub enum Content {
    /// In memory: it came inside a JSON body, whose size is limited.
    Whole(Bytes),
    /// In a file without a name, gone with this value; with its SHA-256.
    Spooled(tokio::fs::File, String),
}

/// Takes the content of one file as it comes in.
pub struct Spool {
    file: tokio::fs::File,
    hash: Sha256,
    written: u64,
    most: u64,
}

impl Runs {
    /// A place for the content of one file, as large as files may be.
    pub async fn spool(&self) -> Result<Spool, RunError> {
        let folder = self.desk.spool_dir.clone();
        let made = tokio::task::spawn_blocking(move || tempfile::tempfile_in(folder)).await;
        let file = made.map_err(RunError::Panicked)?.map_err(RunError::Spool)?;
        let most = self.desk.limits.file_bytes;
        Ok(Spool { file: tokio::fs::File::from_std(file), hash: Sha256::new(), written: 0, most })
    }
}

impl Spool {
    /// Takes a piece.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), RunError> {
        self.written += piece.len() as u64;
        if self.written > self.most {
            return Err(RunError::FileTooLarge(self.most));
        }
        self.hash.update(piece);
        self.file.write_all(piece).await.map_err(RunError::Spool)
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.written
    }

    /// The content, to be read from its start.
    pub async fn finish(mut self) -> Result<Content, RunError> {
        self.file.flush().await.map_err(RunError::Spool)?;
        self.file.rewind().await.map_err(RunError::Spool)?;
        Ok(Content::Spooled(self.file, hexadecimal(self.hash)))
    }
}

impl Content {
    /// SHA-256, lower-case hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> String {
        match self {
            Self::Whole(bytes) => hexadecimal(Sha256::new().chain_update(bytes)),
            Self::Spooled(_, sha256) => sha256.clone(),
        }
    }

    fn stream(self) -> BoxStream<'static, std::io::Result<Bytes>> {
        match self {
            Self::Whole(bytes) => stream::once(async { Ok(bytes) }).boxed(),
            Self::Spooled(file, _) => {
                ReaderStream::with_capacity(file, 256 * 1024).into_stream().boxed()
            }
        }
    }
}

impl Runs {
    /// Writes files into a session, all of them received before the first is written.
    pub async fn put_files(
        &self,
        tenant: &Tenant,
        id: SessionId,
        files: Vec<NewFile>,
    ) -> Result<Vec<FileEntry>, RunError> {
        let (desk, tenant) = (Arc::clone(&self.desk), tenant.clone());
        self.tracked(|_| async move {
            let sandbox = desk.sessions.sandbox(&tenant, id).await?;
            desk.bring(sandbox.as_ref(), files).await
        })
        .await
    }
}

impl Desk {
    /// Writes the files of a request into the sandbox.
    pub(super) async fn bring(
        &self,
        sandbox: &dyn Sandbox,
        files: Vec<NewFile>,
    ) -> Result<Vec<FileEntry>, RunError> {
        let mut entries = Vec::with_capacity(files.len());
        for NewFile { path, content } in files {
            let most = self.limits.file_bytes;
            entries
                .push(sandbox.write_file(&path, content.stream(), most, &Condition::Always).await?);
        }
        Ok(entries)
    }
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
